"""What each GPU does now, and what is wrong with it: one answer for the screen, `devices`, the
exporter and the doctor.

"free" and "busy" are claims, and each needs a proof. Without one the state is n/a, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from gpuconsole.model import units
from gpuconsole.model.machine import Device, Process
from gpuconsole.model.metrics import series_key
from gpuconsole.session.machine import parent

Kind = Literal["free", "busy", "lost", "silent", "n/a"]

UTILIZATION = ("gpu.sm_active_ratio", "gpu.utilization_ratio")
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
BUSY_RATIO = 0.02
"""A GPU without a known process is busy above this share of its utilization. An idle desktop GPU
stays below it."""
MUCH_MEMORY = 2 * 2**30
"""A GPU on which no process is seen is not free above so many used bytes. The driver itself keeps
up to 1 GB, which version 1 of NVML's call counts as used (912 MB on an idle A100:
rust-nvml/nvml-wrapper issue 57; up to 1 GB on H20, B200 and B300: scitix/sichek pull request
113)."""
LOWERED = 0.99
"""A power limit below this share of the board's default was set by a person. At its default a cap
is normal at full load (the rule hw.power)."""
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})
"""XIDs that an error of a program causes. The GPU still works after them (NVIDIA's device plugin
for Kubernetes ignores these in its health check)."""
NO_SAMPLE = "no sample yet"
NOT_LISTED = "its processes are not known"


class MachineReadings(Protocol):
    """What is known of a machine; values and reasons by series key. A `View` is one."""

    @property
    def latest(self) -> Mapping[str, float]: ...
    @property
    def unavailable(self) -> Mapping[str, str]: ...
    @property
    def lost(self) -> Mapping[str, str]: ...
    @property
    def silent(self) -> Mapping[str, float]: ...
    @property
    def processes(self) -> Sequence[Process]: ...
    @property
    def processes_missing(self) -> Mapping[str, str]: ...
    @property
    def xids(self) -> Mapping[str, tuple[int, float]]: ...
    @property
    def ecc_before(self) -> Mapping[str, float]: ...


class CurrentReadings(NamedTuple):
    """A machine at one moment; see `MachineReadings`."""

    latest: Mapping[str, float]
    unavailable: Mapping[str, str]
    lost: Mapping[str, str]
    silent: Mapping[str, float]
    processes: Sequence[Process]
    processes_missing: Mapping[str, str]
    xids: Mapping[str, tuple[int, float]]
    ecc_before: Mapping[str, float]


class GpuState(NamedTuple):
    """`kind`: what the GPU counts as. `words`: a short text of it. `reason`: why it is lost, silent
    or n/a."""

    kind: Kind
    words: str
    reason: str = ""

    @property
    def text(self) -> str:
        """The words with their reason."""
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
    """The state of each GPU and of each MIG slice. That of a GPU in MIG mode follows from its
    slices, which must be among `gpus`."""
    users: dict[str, set[int]] = {}
    for process in seen.processes:
        # a process in a slice uses the GPU, too
        for place in {process.device, parent(process.device)}:
            users.setdefault(place, set()).add(process.pid)
    states = {gpu.id: _state(seen, gpu.id, len(users.get(gpu.id, ()))) for gpu in gpus}
    for gpu, state in states.items():
        # the driver reports no utilization of a GPU in MIG mode
        if state.kind == "n/a" and not unreadable(seen, gpu):
            states[gpu] = _of_slices(
                state, [states[other].kind for other in states if parent(other) == gpu != other]
            )
    return states


def _of_slices(state: GpuState, slices: Sequence[Kind]) -> GpuState:
    """The state of a GPU in MIG mode, from those of its slices where they prove it."""
    if "busy" in slices:
        return GpuState("busy", "busy")
    return GpuState("free", "free") if set(slices) == {"free"} else state


def _state(seen: MachineReadings, gpu: str, users: int) -> GpuState:
    if gpu in seen.lost:
        return GpuState("lost", "lost", seen.lost[gpu])
    if silent_s := seen.silent.get(gpu, 0.0):
        return GpuState("silent", f"silent for {silent_s:.0f} s")
    if why := unreadable(seen, gpu) or ("" if _is_known(seen, VITAL, gpu) else NO_SAMPLE):
        return GpuState("n/a", "n/a", why)
    if users:
        return GpuState("busy", f"{users} {'process' if users == 1 else 'processes'}")
    share = next(
        (seen.latest[key] for name in UTILIZATION if (key := series_key(name, gpu)) in seen.latest),
        None,
    )
    if share is not None and share > BUSY_RATIO:
        return GpuState("busy", "busy")
    why = _why_not_free(seen, gpu, share)
    if broken := next((fault.words for fault in faults(seen, parent(gpu)) if fault.breaks), ""):
        why = why or f"{broken} since the start of the console"
    if why:
        return GpuState("n/a", "n/a", why)
    return GpuState("free", "free")


def unreadable(seen: MachineReadings, gpu: str) -> str:
    """Why nothing of a GPU can be read: it has no handle, or no call works. Empty where something
    can, and before the first reading."""
    if gpu in seen.lost or _is_known(seen, VITAL, gpu):
        return ""
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
    when it came, in session seconds, if that is known. `breaks`: whether work on the GPU may fail
    or be wrong, so that the GPU is not free."""

    words: str
    is_new: bool = True
    t: float | None = None
    breaks: bool = False


def faults(seen: MachineReadings, gpu: str) -> list[Fault]:
    """What is wrong with a GPU, the worst first."""
    if gpu in seen.silent:
        return []

    def now(metric: str) -> float:
        return seen.latest.get(series_key(metric, gpu), 0.0)

    found: list[Fault] = []
    if gpu in seen.xids:
        code, t = seen.xids[gpu]
        found.append(Fault(f"XID {code}", True, t, code not in OF_PROGRAMS))
    if now("gpu.row_remap_failed"):
        found.append(Fault("worn memory", breaks=True))
    old = min(seen.ecc_before.get(gpu, 0.0), now("gpu.ecc_uncorrected"))
    if (new := now("gpu.ecc_uncorrected") - old) > 0:
        found.append(Fault(_errors(new), breaks=True))
    if now("gpu.clocks_hw_thermal") or now("gpu.clocks_sw_thermal"):
        found.append(Fault("heat slowdown"))
    elif now("gpu.clocks_power_brake"):
        found.append(Fault("power brake"))
    elif now("gpu.clocks_hw_slowdown"):
        found.append(Fault("HW slowdown"))
    if now("gpu.clocks_power_cap") and 0 < now("gpu.power_limit_w") < LOWERED * now(
        "gpu.power_limit_default_w"
    ):
        found.append(Fault("power cap"))
    if old:
        found.append(
            Fault(f"{old:.0f} before" if new > 0 else f"{_errors(old)} before", is_new=False)
        )
    return found


def _errors(count: float) -> str:
    return f"{count:.0f} ECC {'error' if count == 1 else 'errors'}"
