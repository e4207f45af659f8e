"""What each GPU does now, and what is wrong with it: one answer for the screen, `devices`, the
exporter and the doctor.

"free", "idle" and "busy" are claims, and each needs a proof. Without one the state is n/a, with the
reason. A GPU with a fault of its own is sick, whatever it does.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from gpuconsole.model import units
from gpuconsole.model.machine import Device, Process
from gpuconsole.model.metrics import series_key
from gpuconsole.session.idle import BUSY_RATIO, UTILIZATION, QuietTime
from gpuconsole.session.machine import parent, users_of

if TYPE_CHECKING:
    from gpuconsole.session.api import View

Kind = Literal["free", "idle", "busy", "sick", "lost", "silent", "n/a"]
KINDS: tuple[Kind, ...] = ("free", "idle", "sick", "lost", "silent", "n/a", "busy")
"""In the order in which a person asks for them."""

PROCESSES = "gpu.processes"
VITAL = (
    "gpu.utilization_ratio",
    "gpu.hbm_used_bytes",
    "gpu.power_w",
    "gpu.temperature_c",
    "gpu.sm_clock_hz",
    "gpu.sm_active_ratio",
)
"""Metrics of which every GPU that answers has at least one. A GPU without any is unreadable; the
first reason in this order says why."""
MIN_IDLE_S = 180.0
"""A GPU is idle when a process has held its memory for this time without work. A training job uses
no GPU while it saves its model: 149 s for a model of 7 billion parameters (PyTorch, "Reducing Model
Checkpointing Times by Over 10x with PyTorch Distributed Asynchronous Checkpointing")."""
MUCH_MEMORY = 2 * 2**30
"""A GPU on which no process is seen is not free above so many used bytes. The driver itself keeps
up to 1 GB, which version 1 of NVML's call counts as used (912 MB on an idle A100:
rust-nvml/nvml-wrapper issue 57; up to 1 GB on H20, B200 and B300: scitix/sichek pull request
113)."""
MIN_CONTEXT = 64 * 2**20
"""A program on a GPU holds more memory: its CUDA context alone takes some 100 MB."""
LOWERED = 0.99
"""A power limit below this share of the board's default was set by a person. At its default a cap
is normal at full load (the rule hw.power)."""
UNKNOWN_ERROR = "unknown driver error"
"""What NVML's error 999 reads."""
MIN_UNKNOWN = 2
"""So many of the VITAL metrics with an unknown error make a GPU sick: a driver that merely does not
support a metric says so by another error."""
HARMLESS_XIDS = frozenset(
    {8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 63, 75, 76, 77, 80, 88, 89, 121}
    | {137, 139, 141, 147, 148, 152, 153, 157, *range(66, 73), *range(82, 87), *range(92, 95)}
    | {*range(96, 109), *range(126, 136), *range(160, 166)}
)
"""XIDs after which the GPU can be used: NVIDIA asks to restart the application, or for nothing
(NVIDIA, "XID Catalog", the immediate action). After any other, also one that the catalogue does not
know, the GPU is sick: it asks for a reset or a restart of the machine."""
BRIDGED = re.compile(r"PCIE|\bNVL\b|RTX|TITAN|QUADRO|GEFORCE|\bA[34]0\b", re.IGNORECASE)
"""Names of cards whose NVLinks need a bridge, which may join only some of them."""
PARTED = re.compile(r"[VP]100")
"""Names of cards that are joined without a switch: in a virtual machine, some of their links may
lead to GPUs of another one."""
NEVER_QUIET = QuietTime(0.0, False)
NO_SAMPLE = "no sample yet"
SLOW_DRIVER = "slow driver"
NOT_LISTED = "its processes are not known"


class CurrentReadings(NamedTuple):
    """What is known of a machine at one moment; values and reasons by series key."""

    latest: Mapping[str, float]
    unavailable: Mapping[str, str]
    lost: Mapping[str, str]
    silent: Mapping[str, float]
    processes: Sequence[Process]
    processes_missing: Mapping[str, str]
    xids: Mapping[str, tuple[int, float]]
    ecc_before: Mapping[str, float]
    quiet: Mapping[str, QuietTime] = {}
    devices: Sequence[Device] = ()
    slow: Mapping[str, str] = {}


MachineReadings: TypeAlias = "CurrentReadings | View"


class GpuState(NamedTuple):
    """`kind`: what the GPU counts as. `words`: a short text of what it does. `reason`: why it is
    sick, lost, silent or n/a. `idle_s`: how long its memory has been held without work."""

    kind: Kind
    words: str
    reason: str = ""
    idle_s: float = 0.0

    @property
    def text(self) -> str:
        """The words with their reason: `lost: fell off the bus`; `sick: heat slowdown (1 process)`
        of a sick GPU in use."""
        if self.kind == "sick" and self.words != "sick":
            return f"sick: {self.reason} ({self.words})"
        return f"{self.words}: {self.reason}" if self.reason else self.words


def whole_gpus(devices: Iterable[Device]) -> list[Device]:
    """The GPUs; their MIG slices are parts of them and do not count."""
    return [device for device in devices if device.is_gpu and not device.is_mig]


def in_words(gpus: Iterable[Device]) -> str:
    """`2 GPUs with 3 MIG slices`."""
    listed = list(gpus)
    whole = len(whole_gpus(listed))
    slices = len(listed) - whole
    text = f"{whole} {'GPU' if whole == 1 else 'GPUs'}"
    return f"{text} with {slices} MIG {'slice' if slices == 1 else 'slices'}" if slices else text


def gpu_states(seen: MachineReadings, gpus: Iterable[Device]) -> dict[str, GpuState]:
    """Return the state of each GPU and of each MIG slice. That of a GPU in MIG mode follows from
    its slices, which must be among `gpus`."""
    listed = users_of(seen.processes)
    holders = users_of(seen.processes, displays=False)
    states = {gpu.id: _doing(seen, gpu.id, listed, holders) for gpu in gpus}
    for gpu, state in states.items():
        # the driver reports no utilization of a GPU in MIG mode
        if state.kind in ("n/a", "busy") and _answers(seen, gpu) and _share(seen, gpu) is None:
            states[gpu] = _of_slices(
                state, [states[other] for other in states if parent(other) == gpu != other]
            )
    sick = {
        whole: ", ".join(fault.words for fault in faults(seen, whole) if fault.breaks)
        for whole in dict.fromkeys(map(parent, states))
    }
    return {
        gpu: _sick(state, why) if (why := sick[parent(gpu)]) and _answers(seen, gpu) else state
        for gpu, state in states.items()
    }


def _sick(state: GpuState, why: str) -> GpuState:
    """The state of a GPU with a fault of its own. What it does stays in its words."""
    words = state.words if state.kind in ("idle", "busy") else "sick"
    return GpuState("sick", words, why, state.idle_s)


def _answers(seen: MachineReadings, gpu: str) -> bool:
    """Whether the GPU is there and gives values."""
    return gpu not in seen.lost and gpu not in seen.silent and _is_known(seen, VITAL, gpu)


def _of_slices(state: GpuState, slices: Sequence[GpuState]) -> GpuState:
    """The state of a GPU in MIG mode, from those of its slices where they prove it."""
    kinds = {of_slice.kind for of_slice in slices}
    if "busy" in kinds:
        return state if state.kind == "busy" else GpuState("busy", "busy")
    if "idle" in kinds and kinds <= {"idle", "free"}:
        return min((one for one in slices if one.kind == "idle"), key=lambda one: one.idle_s)
    return GpuState("free", "free") if kinds == {"free"} and state.kind == "n/a" else state


Users = Mapping[str, Collection[int]]


def _doing(seen: MachineReadings, gpu: str, listed: Users, holders: Users) -> GpuState:
    """What a GPU does, its faults aside. `listed`: its processes; `holders`: without those that
    only draw, which hold a GPU only if much of its memory is used."""
    if gpu in seen.lost:
        return GpuState("lost", "lost", seen.lost[gpu])
    if silent_s := seen.silent.get(gpu, 0.0):
        return GpuState("silent", f"silent for {silent_s:.0f} s", seen.slow.get(parent(gpu), ""))
    if parent(gpu) in seen.slow and not _is_known(seen, VITAL, parent(gpu)):
        return GpuState("silent", "silent", seen.slow[parent(gpu)])
    if why := unreadable(seen, gpu) or ("" if _is_known(seen, VITAL, gpu) else NO_SAMPLE):
        return GpuState("n/a", "n/a", why)
    share = _share(seen, gpu)
    users = len(listed.get(gpu, ()))
    words = f"{users} {'process' if users == 1 else 'processes'}" if users else "busy"
    used = seen.latest.get(series_key("gpu.hbm_used_bytes", gpu), 0.0)
    if share is not None and share > BUSY_RATIO:
        if is_work_stuck(seen, gpu) and not users:
            return GpuState("n/a", "n/a", f"GPU-Util {share * 100:.0f} %, but no memory is used")
        return GpuState("busy", words)
    if holders.get(gpu) or (users and used > MUCH_MEMORY):
        quiet = seen.quiet.get(gpu, NEVER_QUIET) if share is not None else NEVER_QUIET
        return _idle(quiet) if quiet.seconds >= MIN_IDLE_S else GpuState("busy", words)
    if why := _why_not_free(seen, gpu, share):
        return GpuState("n/a", "n/a", why)
    return GpuState("free", "free")


def is_work_stuck(seen: MachineReadings, gpu: str) -> bool:
    """Whether GPU-Util reports work without the memory that work needs. After a program was killed,
    some drivers go on counting it (Datura-ai/lium-io 1140)."""
    used = seen.latest.get(series_key("gpu.hbm_used_bytes", gpu), math.inf)
    active = seen.latest.get(series_key("gpu.sm_active_ratio", gpu), 0.0)
    is_unused = used < MIN_CONTEXT and active <= BUSY_RATIO
    return is_unused and not _device(seen, parent(gpu)).is_unified


def _share(seen: MachineReadings, gpu: str) -> float | None:
    """How much a GPU works: the larger of the two measures. None: neither has a value."""
    known = (seen.latest.get(series_key(name, gpu)) for name in UTILIZATION)
    return max((share for share in known if share is not None), default=None)


def _idle(quiet: QuietTime) -> GpuState:
    """`idle 14 min`, or `idle 14+ min` where nothing is known of the time before."""
    minutes, hours, days = (int(quiet.seconds // size) for size in (60, 3600, 86400))
    number, unit = (
        (minutes, "min") if minutes < 120 else (hours, "h") if hours < 48 else (days, "days")
    )
    words = f"idle {number}{'+' if quiet.at_least else ''} {unit}"
    return GpuState("idle", words, idle_s=quiet.seconds)


def unreadable(seen: MachineReadings, gpu: str) -> str:
    """Return why nothing of a GPU can be read: it has no handle, no call works, or its first call
    has not returned. Empty where something can be read, and before the first reading."""
    if gpu in seen.lost or _is_known(seen, VITAL, gpu):
        return ""
    if why := seen.slow.get(parent(gpu)):
        return why
    reasons = [seen.unavailable.get(series_key(name, gpu), "") for name in VITAL]
    return reasons[0] if all(reasons) else ""


def _why_not_free(seen: MachineReadings, gpu: str, share: float | None) -> str:
    """Why a GPU without a process, and without work that is known, cannot be called free; empty if
    it can."""
    whole = parent(gpu)
    if share is None:
        why = next(
            (
                why
                for name in reversed(UTILIZATION)
                if (why := seen.unavailable.get(series_key(name, gpu)))
            ),
            NO_SAMPLE,
        )
        return f"util: {why}"
    listed = series_key(PROCESSES, whole)
    if listed not in seen.latest:
        why = seen.processes_missing.get(whole) or seen.unavailable.get(listed, "")
        return f"processes: {why}" if why else NOT_LISTED
    used = seen.latest.get(series_key("gpu.hbm_used_bytes", gpu), 0.0)
    return f"{units.size_bytes(used).strip()} used, no process seen" if used > MUCH_MEMORY else ""


def _is_known(seen: MachineReadings, metrics: Iterable[str], gpu: str) -> bool:
    return any(series_key(name, gpu) in seen.latest for name in metrics)


# --- what is wrong with a GPU ---------------------------------------------------------------------


class Fault(NamedTuple):
    """`is_new`: it lasts, or it came since the start of the console; else it is an old count. `t`:
    when it came, in session seconds, if that is known. `breaks`: whether it is a fault of the GPU
    itself, by which work on the GPU may fail, be wrong or be slow. Then the GPU is sick."""

    words: str
    is_new: bool = True
    t: float | None = None
    breaks: bool = False


def faults(seen: MachineReadings, gpu: str) -> list[Fault]:
    """Return what is wrong with a GPU, the worst first."""
    if gpu in seen.silent:
        return []

    def now(metric: str) -> float:
        return seen.latest.get(series_key(metric, gpu), 0.0)

    found: list[Fault] = []
    if gpu in seen.xids:
        code, t = seen.xids[gpu]
        found.append(Fault(f"XID {code}", True, t, code not in HARMLESS_XIDS))
    if gpu in seen.slow and _is_known(seen, VITAL, gpu):
        found.append(Fault(SLOW_DRIVER, breaks=True))
    if now("gpu.row_remap_failed"):
        found.append(Fault("worn memory", breaks=True))
    old = min(seen.ecc_before.get(gpu, 0.0), now("gpu.ecc_uncorrected"))
    if (new := now("gpu.ecc_uncorrected") - old) > 0:
        found.append(Fault(_errors(new), breaks=True))
    if unknown := unknown_errors(seen, gpu):
        found.append(Fault(f"{unknown} of {len(VITAL)} readings fail", breaks=True))
    if now("gpu.row_remap_pending"):
        found.append(Fault("row remap pending", breaks=True))
    if links := links_down(seen, gpu):
        found.append(Fault(links, breaks=True))
    if now("gpu.clocks_hw_thermal") or now("gpu.clocks_sw_thermal"):
        found.append(Fault("heat slowdown", breaks=True))
    elif now("gpu.clocks_power_brake"):
        found.append(Fault("power brake"))
    elif now("gpu.clocks_hw_slowdown"):
        # a change of the performance state may report it, too (nvml.h)
        found.append(Fault("HW slowdown"))
    if now("gpu.clocks_power_cap") and 0 < now("gpu.power_limit_w") < LOWERED * now(
        "gpu.power_limit_default_w"
    ):
        found.append(Fault("power cap"))
    if lanes := lanes_missing(seen, gpu):
        found.append(Fault(lanes))
    if mode := _device(seen, gpu).facts.get("ecc_pending"):
        found.append(Fault(f"ECC {mode} after a reset"))
    if old:
        found.append(
            Fault(f"{old:.0f} before" if new > 0 else f"{_errors(old)} before", is_new=False)
        )
    return found


def _errors(count: float) -> str:
    return f"{count:.0f} ECC {'error' if count == 1 else 'errors'}"


def worst_xids(times: Mapping[str, Mapping[int, float]]) -> dict[str, tuple[int, float]]:
    """Return the worst error of each GPU with its time: the newest after which the GPU cannot be
    used, or the newest of all. The driver removes the work of a broken GPU, which is one more error
    (XID 45)."""
    return {
        gpu: sorted(errors.items(), key=lambda error: (error[0] not in HARMLESS_XIDS, error[1]))[-1]
        for gpu, errors in times.items()
    }


def lanes_missing(seen: MachineReadings, gpu: str) -> str:
    """Return `8 of 16 PCIe lanes` where a GPU uses fewer lanes than it and its slot have, and fewer
    than another GPU of its name. Where all of them use half of the lanes, the machine may be built
    so."""
    used = seen.latest.get(series_key("gpu.pcie_link_width", gpu), 0.0)
    most = seen.latest.get(series_key("gpu.pcie_link_width_max", gpu), 0.0)
    if not 0 < used < most:
        return ""
    usual = max(most / 2, _most_of_its_name(seen, gpu, "gpu.pcie_link_width"))
    return f"{used:.0f} of {most:.0f} PCIe lanes" if used < usual else ""


def _most_of_its_name(seen: MachineReadings, gpu: str, metric: str) -> float:
    """The largest value among the GPUs of the same name."""
    name = _device(seen, gpu).name
    named = [gpu, *(device.id for device in seen.devices if device.name == name)]
    return max(seen.latest.get(series_key(metric, other), 0.0) for other in named)


def unknown_errors(seen: MachineReadings, gpu: str) -> int:
    """Return how many vital metrics of a GPU fail for a reason that the driver does not know,
    beside others that it answers; 0 below MIN_UNKNOWN."""
    missing = [key for name in VITAL if (key := series_key(name, gpu)) not in seen.latest]
    if gpu in seen.lost or not 0 < len(missing) < len(VITAL):
        return 0
    count = sum(seen.unavailable.get(key) == UNKNOWN_ERROR for key in missing)
    return count if count >= MIN_UNKNOWN else 0


def links_down(seen: MachineReadings, gpu: str) -> str:
    """Return `12 of 18 NVLinks` where a GPU has fewer active NVLinks than it should: than other
    GPUs of its name, or than the card has. Empty where that is right, or not known.

    Without a bridge a card has none, and its neighbours may have one. Where the links of all GPUs
    are down, a virtual machine may have them without their switch.
    """
    up = seen.latest.get(series_key("gpu.nvlinks_active", gpu))
    if up is None or not _is_link(seen, gpu, int(up)):
        return ""  # all links that exist are active
    name = _device(seen, gpu).name
    bridged = BRIDGED.search(name) is not None
    fewer = up < _most_of_its_name(seen, gpu, "gpu.nvlinks_active") and (up > 0 or not bridged)
    if not fewer and (up == 0 or bridged or PARTED.search(name)):
        return ""
    exist = next(n for n in itertools.count(int(up) + 1) if not _is_link(seen, gpu, n))
    return f"{up:.0f} of {exist} NVLinks"


def _device(seen: MachineReadings, gpu: str) -> Device:
    return next((device for device in seen.devices if device.id == gpu), Device(gpu, ""))


def _is_link(seen: MachineReadings, gpu: str, number: int) -> bool:
    """Whether the GPU has so many links and one more; the first has the number 0."""
    return series_key("gpu.link_up", f"{gpu}/link:{number}") in seen.latest
