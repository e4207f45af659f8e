"""One GPU or MIG slice: each of its metrics as a value or as the reason for a missing value; its
NVLinks, each with its state, traffic and errors; and the links between GPUs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations, takewhile
from typing import Any, NamedTuple, Protocol

import msgspec

from gpuconsole.model.machine import Device, Link, Process
from gpuconsole.model.metrics import CATALOGUE, LINK_METRICS
from gpuconsole.model.metrics import GPU_METRICS as DECLARED
from gpuconsole.telemetry.nvml.calls import (
    BRIEF_CALLS,
    FAST_CALLS,
    GARBAGE,
    MEMORY,
    SLOW_CALLS,
    CallReader,
    DriverCall,
    contradictions,
    is_plausible,
)
from gpuconsole.telemetry.nvml.facts import (
    NO_RESERVE,
    NO_SIZES,
    PROCESSES,
    SOURCE,
    WITHOUT_FILES,
    describe,
    describe_slice,
    fact,
    is_mig_on,
    memory_of,
    pci_address,
    unified_values,
    used_by,
    without_files,
)
from gpuconsole.telemetry.nvml.fields import (
    FAST_FIELDS,
    REASON_COUNTERS,
    SLOW_FIELDS,
    FieldReader,
    link_fields,
    reason_fields,
)
from gpuconsole.telemetry.nvml.gpm import C2C, GpmReader, gpm_metrics, link_gpm_metrics
from gpuconsole.telemetry.nvml.library import (
    NOT_SUPPORTED,
    CallFailed,
    call,
    driver_is_at_least,
    member,
    meter,
)

# --- the single NVLinks of a GPU, read every few seconds ------------------------------------------

# NVML_NVLINK_MAX_LINKS of the newest driver; an older driver rejects higher link numbers
_MAX_NVLINKS = 36
_INVALID_ARGUMENT = 2
_LINK_STATE = 165  # NVML_FI_DEV_NVLINK_GET_STATE; 0: inactive
_NAMES = tuple(metric.name for metric in LINK_METRICS)
_NOT_REPORTED = "the driver does not report it"


def link_states(handle: Any) -> list[bool] | None:
    """Return whether each NVLink of the device is active; None when the driver does not report it.
    One call asks for all links. A driver that lacks the field is asked for one link after the
    other. Raises CallFailed for a lost device."""
    try:
        answers = call(
            "nvmlDeviceGetFieldValues",
            handle,
            [(_LINK_STATE, link) for link in range(_MAX_NVLINKS)],
        )
    except CallFailed as failure:
        if failure.is_loss:
            raise
        answers = []
    known = takewhile(lambda answer: not member(answer, "nvmlReturn"), answers)
    states = [bool(member(answer, "value").uiVal) for answer in known]
    return states or _link_states_one_by_one(handle)


def _link_states_one_by_one(handle: Any) -> list[bool] | None:
    states: list[bool] = []
    for link in range(_MAX_NVLINKS):
        try:
            states.append(bool(call("nvmlDeviceGetNvLinkState", handle, link)))
        except CallFailed as failure:
            if failure.is_loss:
                raise
            # no such link: the previous link was the last
            if failure.code in (NOT_SUPPORTED, _INVALID_ARGUMENT):
                break
            return None
    return states


class LinksReader:
    """`read` yields the values of each link of a device and the reasons for missing values."""

    def __init__(self, handle: Any, links: int) -> None:
        self.links = links
        self._handle = handle
        self._gpm = GpmReader(handle, link_gpm_metrics(links))
        architecture = fact("nvmlDeviceGetArchitecture", handle) if links else None
        self._fields = FieldReader(handle, link_fields(links, architecture))

    def read(self) -> list[tuple[dict[str, float], dict[str, str]]]:
        """Values and reasons by link. Raises CallFailed only for a lost device."""
        if not self.links:
            return []
        states = link_states(self._handle)
        values, failures = self._gpm.read()
        more_values, more_failures = self._fields.read(())
        values |= more_values
        failures |= more_failures
        if states is not None:
            values |= {f"gpu.link_up/{link}": float(up) for link, up in enumerate(states)}
        return [_of_link(link, values, failures) for link in range(self.links)]


def _of_link(
    link: int, values: dict[str, float], failures: dict[str, CallFailed]
) -> tuple[dict[str, float], dict[str, str]]:
    """The part of the readings that belongs to one link."""
    of_link: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name in _NAMES:
        value = values.get(f"{name}/{link}")
        if value is None:
            reasons[name] = str(failures.get(f"{name}/{link}", _NOT_REPORTED))
        elif is_plausible(name, value):
            of_link[name] = value
        else:
            reasons[name] = GARBAGE
    return of_link, reasons


# --- a GPU ----------------------------------------------------------------------------------------

GPU_METRICS = tuple(metric.name for metric in DECLARED)
SLOW_S = 10.0
"""Seconds between two readings of metrics that change rarely."""

_NVLINK_TOTALS = ("gpu.nvlink_rx_bytes_per_s", "gpu.nvlink_tx_bytes_per_s")
_NO_NVLINK = "no active NVLink on this device"
_NO_C2C = "no chip-to-chip link on this device"
_C2C_LINKS = 170  # NVML_FI_DEV_C2C_LINK_COUNT
_WAITS = "the driver has not reported it yet"
MARGIN = "nvml, the temperature and its margin"
NOT_IN_BRIEF = "not asked for in the brief form"
_MIG = "not supported while MIG mode is on"
_DRIVER_575 = "needs driver 575 or newer"
_WHOLE_ONLY = "reported for the whole GPU only, not for a MIG slice"


def has_c2c(handle: Any) -> bool:
    """Whether the GPU has links to a Grace CPU in its package."""
    answers = fact("nvmlDeviceGetFieldValues", handle, [(_C2C_LINKS, 0)])
    if answers is None or member(answers[0], "nvmlReturn"):
        return False
    return bool(member(answers[0], "value").uiVal)


class _Reader(Protocol):
    source: str
    waiting: list[str]

    def read(self, have: Any, /) -> tuple[dict[str, float], dict[str, CallFailed]]: ...


class Gpu:
    """Reads one device. A lost device stays lost here: a reset brings the GPU back, and invalidates
    the handle (see `NvmlSource`)."""

    def __init__(
        self,
        device: str,
        handle: Any,
        may_ask: Callable[[str, DriverCall], bool],
        brief: Device | None = None,
    ) -> None:
        """`may_ask(device, call)`: whether a slow call is due now. `brief`: the device as far as it
        is known; the GPU is asked only for what one line of it needs."""
        meter.device = device
        self.handle = handle
        self.loss: str | None = None
        if brief is not None:
            self._set_up_brief(brief)
            return
        c2c = has_c2c(handle)
        self.reasons: dict[str, str] = {} if c2c else dict.fromkeys(C2C, _NO_C2C)
        if not driver_is_at_least(575):
            self.reasons |= dict.fromkeys((*REASON_COUNTERS, *C2C), _DRIVER_575)
        self.links: list[tuple[dict[str, float], dict[str, str]]] = []
        self.substitutes: dict[str, str] = {}
        self._seen: set[str] = set()
        self._limit_w = 0.0
        self._mig = is_mig_on(handle)
        states = None
        try:
            states = link_states(handle)
        except CallFailed as failure:
            self._lose(failure)
        self.link_states = states
        self.nvlinks = sum(states) if states is not None else None
        self._memory = memory_of(handle, self._mig)
        self.device: Device = describe(device, handle, states, self._memory)
        unified = self.device.is_unified
        self._fast: tuple[_Reader, ...] = (
            GpmReader(handle, gpm_metrics(c2c)),
            FieldReader(handle, FAST_FIELDS + reason_fields()),
            CallReader(
                handle,
                tuple(asked for asked in FAST_CALLS if not (unified and asked is MEMORY)),
                lambda question: may_ask(device, question),
            ),
        )
        self._slow: tuple[_Reader, ...] = (
            FieldReader(handle, SLOW_FIELDS),
            CallReader(handle, SLOW_CALLS),
        )
        self._links = LinksReader(handle, len(states or ()))
        self._slow_read_t = float("-inf")

    def _set_up_brief(self, known: Device) -> None:
        handle = self.handle
        asked = {name for question in BRIEF_CALLS for name in question.metrics}
        asked |= {*gpm_metrics(False), *(field.metric for field in SLOW_FIELDS), "gpu.processes"}
        self.reasons = {name: NOT_IN_BRIEF for name in GPU_METRICS if name not in asked}
        self.links, self.substitutes = [], {}
        self._seen, self._limit_w = set(), 0.0
        self._mig, self.nvlinks, self.link_states = False, None, None
        self._memory = memory = memory_of(handle, in_slices=False)
        facts = {"memory_kind": memory.kind} if memory.kind else {}
        self.device = msgspec.structs.replace(known, memory_bytes=memory.total, facts=facts)
        self._fast = (
            GpmReader(handle, gpm_metrics(False)),
            CallReader(handle, BRIEF_CALLS),
            FieldReader(handle, SLOW_FIELDS),
        )
        self._slow = ()
        self._links = LinksReader(handle, 0)
        self._slow_read_t = math.inf

    def prime(self) -> None:
        """Take the first of the two readings that rates need. The first `read` reports errors of
        this reading."""
        meter.device = self.device.id
        if self.loss is not None:
            return
        try:
            for reader in self._fast:
                if not isinstance(reader, CallReader):
                    reader.read(())
            self._links.read()
        except CallFailed as failure:
            self._lose(failure)

    def read_first(self) -> dict[str, float]:
        """Return the vital readings, and those that need no second reading. The next `read` reports
        the readings that are missing."""
        if self.loss is not None:
            return {}
        meter.device = self.device.id
        values: dict[str, float] = {}
        self.substitutes = {}
        unified = self.device.is_unified
        asked = tuple(each for each in BRIEF_CALLS if not (unified and each is MEMORY))
        try:
            self._read_from((CallReader(self.handle, asked),), values)
            self._share_memory(values)
            self._drop_contradictions(values)
        except CallFailed as failure:
            self._lose(failure)
            return {}
        return values

    def read(self) -> dict[str, float]:
        """The values of this round in catalogue units; `reasons` then holds the reasons for missing
        values.

        Rarely read metrics are in some rounds only. A metric that is neither returned nor in
        `reasons` has not changed. `substitutes` names the source of each value that did not come
        from the catalogued source.
        """
        if self.loss is not None:
            return {}
        meter.device = self.device.id
        values: dict[str, float] = {}
        self.substitutes = {}
        try:
            self._read_from(self._fast, values)
            self._derive(values)
            self._share_memory(values)
            if time.monotonic() - self._slow_read_t >= SLOW_S:
                self._slow_read_t = time.monotonic()
                self._read_from(self._slow, values)
                self._add_slowdown(values)
                self._read_links(values)
            self._drop_contradictions(values)
        except CallFailed as failure:
            self._lose(failure)
            return {}
        return values

    def links_up(self) -> list[int]:
        """Return the active NVLinks. With a bridge these are not always the first links."""
        return [link for link, up in enumerate(self.link_states or ()) if up]

    def refuse(self, metric: str, reason: str) -> None:
        """Record that no source has this metric."""
        self.reasons[metric] = reason

    def note(self, failure: CallFailed, *metrics: str) -> None:
        """Record the failures of another reader. If the failure is a loss of the GPU, the device
        ends."""
        if failure.is_loss:
            self._lose(failure)
        else:
            self.reasons.update(dict.fromkeys(metrics, self._words(failure)))

    def _read_from(self, readers: tuple[_Reader, ...], values: dict[str, float]) -> None:
        """Each reader adds the metrics that earlier readers did not provide. Raises CallFailed only
        for a lost device."""
        refused: dict[str, CallFailed] = {}
        impossible: set[str] = set()
        # metrics whose reader has no new value; no other reader replaces it
        passed: set[str] = set()
        for reader in readers:
            read, failures = reader.read(values.keys() | passed)
            refused.update(failures)
            for name in reader.waiting:  # the previous value is still valid
                refused.pop(name, None)
                if name not in self._seen and name not in self.reasons:
                    refused[name] = CallFailed(-1, _WAITS)
            passed.update(reader.waiting)
            for name, value in read.items():
                if not is_plausible(name, value):
                    impossible.add(name)
                    continue
                # Counters that are read at different times can add up to slightly more than the
                # whole.
                values[name] = 1.0 if value > 1.0 and name.endswith("_ratio") else value
                if CATALOGUE[name].source != reader.source:
                    self.substitutes[name] = reader.source
        self._seen.update(values)
        if self.reasons:
            self.reasons = {
                name: reason for name, reason in self.reasons.items() if name not in values
            }
        if self.nvlinks == 0:  # the counters read 0 there, which would look like an idle link
            for name in _NVLINK_TOTALS:
                values.pop(name, None)
                refused[name] = CallFailed(-1, _NO_NVLINK)
        self.reasons.update(
            {name: self._words(failure) for name, failure in refused.items() if name not in values}
        )
        self.reasons.update({name: GARBAGE for name in impossible if name not in values})

    def _read_links(self, values: dict[str, float]) -> None:
        name = "gpu.nvlinks_active"
        self.links = self._links.read()
        states = [link.get("gpu.link_up") for link, _ in self.links]
        if states and None not in states:
            # links become active after the driver
            self.link_states = [bool(state) for state in states]
            self.nvlinks = sum(self.link_states)
            values[name] = float(self.nvlinks)
            self.reasons.pop(name, None)
        elif self.nvlinks is None:
            self.reasons[name] = "the driver does not report it"
        elif not states:
            values[name] = 0.0

    def _derive(self, values: dict[str, float]) -> None:
        name, source = "gpu.hbm_bytes_per_s", "gpu.dram_active_ratio"
        peak = self.device.peaks.memory_bytes_per_s
        if source in values and peak is not None:
            values[name] = values[source] * peak
            self.reasons.pop(name, None)
        elif source in values:
            self.reasons[name] = "the datasheet bandwidth of this device is not known"
        elif source in self.reasons:  # otherwise both are unchanged
            self.reasons[name] = self.reasons[source]

    def _add_slowdown(self, values: dict[str, float]) -> None:
        """The temperature at which the hardware lowers its clocks, where the driver reports only
        how far away it is, as NVML announces for Ada and newer."""
        name = "gpu.temperature_slowdown_c"
        if name in values or "gpu.temperature_c" not in values:
            return
        margin = fact("nvmlDeviceGetMarginTemperature", self.handle)
        if margin is not None and is_plausible(name, values["gpu.temperature_c"] + margin):
            values[name], self.substitutes[name] = values["gpu.temperature_c"] + margin, MARGIN
            self.reasons.pop(name, None)

    def _drop_contradictions(self, values: dict[str, float]) -> None:
        """Values that cannot be true together become n/a, with the reason."""
        name = "gpu.power_limit_w"
        self._limit_w = values.get(name, 0.0 if name in self.reasons else self._limit_w)
        for name, why in contradictions(values, self._limit_w).items():
            del values[name]
            self.substitutes.pop(name, None)
            self.reasons[name] = why

    def _share_memory(self, values: dict[str, float]) -> None:
        """The memory of a GPU that shares it with the host. The used part of unified memory comes
        with the processes: see `add_processes`."""
        if self.device.is_unified:
            read, source = unified_values(), SOURCE
            self.reasons["gpu.hbm_reserved_bytes"] = NO_RESERVE
        elif self._memory.node is not None:
            read, source = without_files(values, self._memory.node), WITHOUT_FILES
        else:
            return
        values |= read
        self.substitutes |= dict.fromkeys(read, source)

    def add_processes(self, processes: list[Process], values: dict[str, float]) -> None:
        """The processes of the GPU were listed: with unified memory, the GPU uses the sum of
        theirs."""
        name = "gpu.hbm_used_bytes"
        if not self.device.is_unified:
            return
        used = used_by(processes)
        if used is None:
            self.reasons[name] = NO_SIZES
            return
        self.reasons.pop(name, None)
        values[name], self.substitutes[name] = used, PROCESSES

    def _words(self, failure: CallFailed) -> str:
        return _MIG if self._mig and failure.code == NOT_SUPPORTED else str(failure)

    def _lose(self, failure: CallFailed) -> None:
        self.loss = str(failure)
        self.reasons = dict.fromkeys(GPU_METRICS, self.loss)
        self.links = []


class MigSlice:
    """A MIG instance as a device, with its memory and counters. The instance is lost together with
    its GPU."""

    def __init__(self, device: str, handle: Any, whole: Gpu) -> None:
        meter.device = device
        self.instance: int | None = fact("nvmlDeviceGetGpuInstanceId", handle)
        self.device = describe_slice(device, handle)
        self.whole = whole
        self.handle = handle
        self.reasons: dict[str, str] = dict.fromkeys(GPU_METRICS, _WHOLE_ONLY)
        self._readers: tuple[_Reader, ...] = (CallReader(handle, (MEMORY,)),)
        if self.instance is not None:
            self._readers = (
                GpmReader(whole.handle, gpm_metrics(False), self.instance),
                *self._readers,
            )

    def read(self) -> dict[str, float]:
        """The values; `reasons` holds the reasons for missing values."""
        if self.whole.loss is not None:
            self.reasons = dict.fromkeys(GPU_METRICS, self.whole.loss)
            return {}
        meter.device = self.device.id
        values: dict[str, float] = {}
        for reader in self._readers:
            try:
                read, failures = reader.read(())
            except CallFailed as failure:
                self.whole.note(failure)
                return {}
            self.reasons.update({name: str(failure) for name, failure in failures.items()})
            for name, value in read.items():
                if is_plausible(name, value):
                    values[name] = min(value, 1.0) if name.endswith("_ratio") else value
                    self.reasons.pop(name, None)
                else:
                    self.reasons[name] = GARBAGE
        wrong = contradictions(values)
        self.reasons |= wrong
        return {name: value for name, value in values.items() if name not in wrong}


def mig_slices(whole: Gpu) -> list[MigSlice]:
    """The slices of a GPU in MIG mode; empty where there are no visible slices."""
    return [
        MigSlice(f"{whole.device.id}/mig:{index}", handle, whole)
        for index, handle in _slice_handles(whole)
    ]


def mig_layout(gpus: list[Gpu]) -> dict[str, tuple[object, ...]]:
    """The UUIDs of the slices of each GPU in MIG mode that answers."""
    return {
        gpu.device.id: tuple(fact("nvmlDeviceGetUUID", handle) for _, handle in _slice_handles(gpu))
        for gpu in gpus
        if is_mig_on(gpu.handle)
    }


def _slice_handles(whole: Gpu) -> list[tuple[int, Any]]:
    meter.device = whole.device.id
    if not is_mig_on(whole.handle):
        return []
    slices = []
    for index in range(fact("nvmlDeviceGetMaxMigDeviceCount", whole.handle) or 0):
        handle = fact("nvmlDeviceGetMigDeviceHandleByIndex", whole.handle, index)
        if handle is not None:  # otherwise the index has no slice
            slices.append((index, handle))
    return slices


# --- the links between the GPUs of this machine ---------------------------------------------------

# nvmlGpuTopologyLevel_t in nvidia-smi's words.
_LEVELS = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_TO_GPU = 0
_TO_SWITCH = 2  # nvmlIntNvLinkDeviceType_t
_SWITCH = "switch"
_MAX_GPUS = 128
"""No machine has more GPUs, and the number of pairs grows with the square."""


class LinkEnds(NamedTuple):
    """The PCI address of a GPU, and the number of its NVLinks to each address, or to a switch."""

    place: str
    ends: Counter[str]


def link_ends(gpu: Gpu) -> LinkEnds:
    return LinkEnds(pci_address(gpu.handle), _nvlink_ends(gpu))


def links_between(gpus: list[Gpu], known: Mapping[str, LinkEnds]) -> list[Link]:
    """The best path of each pair: NVLink if present, otherwise PCIe. A pair that the driver does
    not report is left out."""
    if len(gpus) > _MAX_GPUS:
        return []
    links = []
    for gpu, other in combinations(gpus, 2):
        a, b = gpu.device.id, other.device.id
        direct = known[a].ends[known[b].place]
        through_switch = min(known[a].ends[_SWITCH], known[b].ends[_SWITCH])
        nvlinks = max(direct, through_switch)
        if nvlinks:
            links.append(Link(a, b, f"NV{nvlinks}"))
            continue
        level = fact("nvmlDeviceGetTopologyCommonAncestor", gpu.handle, other.handle)
        if level in _LEVELS:
            links.append(Link(a, b, _LEVELS[level]))
    return links


def _nvlink_ends(gpu: Gpu) -> Counter[str]:
    ends: Counter[str] = Counter()
    for link in gpu.links_up():
        kind = fact("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.handle, link)
        if kind == _TO_SWITCH:
            ends[_SWITCH] += 1
        elif kind == _TO_GPU:
            info = fact("nvmlDeviceGetNvLinkRemotePciInfo", gpu.handle, link)
            if info is not None:
                raw = info.busId
                ends[
                    (raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)).lower()
                ] += 1
    return ends
