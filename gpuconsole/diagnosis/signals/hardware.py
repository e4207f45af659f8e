"""Telemetry of the run's GPU as signals for the rules: clocks, power, links, NUMA node, other
processes, errors, growth of memory.

Clocks and links count only in readings under load, because an idle GPU lowers both to save power.
The activity of the GPU counts in all readings of the steady steps. A run on a CPU has only
`is_gpu`.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable, Iterable

from gpuconsole.model.finding import Signal
from gpuconsole.model.job import JobFacts
from gpuconsole.model.machine import Device, Link, Process, named_cores
from gpuconsole.model.metrics import series_key
from gpuconsole.model.series import Weighed
from gpuconsole.model.text import percent
from gpuconsole.session.figures.distributions import steady_growth
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState

WINDOW_S = 30.0
RUN_QUEUE = "host.run_queue_delay_ratio"
LOADED = 0.5
"""Minimum utilization of a reading under load. A GPU keeps its clocks for seconds after its
work."""
MIN_READINGS = 3
REPLAYS_S = 120.0
MIN_REPLAYS_S = 30.0
MIN_STEPS = 50
HARDWARE_XIDS = frozenset((48, 61, 62, 64, 74, 79, 95, 110, 136, 140, 143, 158, 167, 171, 172))
"""XIDs that indicate a hardware fault (NVIDIA, "XID Catalog"): NVIDIA asks for a reset of the GPU
or a restart of the machine, before any look at software. Most other XIDs are caused, or may be
caused, by programs. The catalog says to ignore 63, 92, 121, 147 and 148, to restart the application
after 94, and to investigate software after 119 and 120."""
NVLINK_XIDS = frozenset((144, 145, 146, 149, 150))
"""XIDs of NVLink from Blackwell on. Only their text in the kernel log says whether they are fatal;
NVML's events carry no text."""
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""PCIe: one lane in one direction by generation, without the line code (PCI-SIG)."""
HELD = {
    "thermal": (
        ("thermal_time_ratio", ""),
        ("sw_thermal_time_ratio", "clocks_sw_thermal"),
        ("hw_thermal_time_ratio", "clocks_hw_thermal"),
    ),
    "power_cap": (("power_cap_time_ratio", "clocks_power_cap"),),
    "power_brake": (("power_brake_time_ratio", "clocks_power_brake"),),
    "other_hold": (
        ("sync_boost_time_ratio", "clocks_sync_boost"),
        ("board_limit_time_ratio", ""),
        ("reliability_time_ratio", ""),
        ("", "clocks_hw_slowdown"),
    ),
}
"""Causes of low clocks: for each cause, the driver's time counter, and the reason at each reading,
which is used without a counter."""
GRAPHICS_CARD = re.compile(r"\b(GeForce|TITAN|Quadro|RTX)\b")
"""Names of GeForce and workstation cards."""
ACTIVITY = {
    "gpu.util_ratio": ("utilization_ratio", "share of time in which any kernel ran"),
    "gpu.sm_active_ratio": (
        "sm_active_ratio",
        "share of time in which an SM had work, averaged over SMs",
    ),
    "gpu.tensor_active_ratio": (
        "tensor_active_ratio",
        "share of peak cycles in which tensor cores were active",
    ),
    "gpu.dram_active_ratio": ("dram_active_ratio", "memory bandwidth in use over its maximum"),
}
"""For each signal its metric, and what it means."""
PLACES = 4
"""The processes of a job that the source of a signal names."""
LIST_AGE_S = 5.0
UNNAMED_BYTES = 500e6
"""More than the driver uses in addition to its reserve; about the size of an empty CUDA context."""
UNDER_LOAD = f"under load (utilization {percent(LOADED)} or more)"

Signals = dict[str, Signal]


class HardwareWatch:
    """Signals of a run's device. Counters are compared with their first value. `is_ours`: whether
    the console started a process."""

    def __init__(self, is_ours: Callable[[Process], bool]) -> None:
        self._is_ours = is_ours
        self._first: dict[str, tuple[float, float]] = {}

    def signals(self, state: SessionState, record: RunRecord) -> Signals:
        host = _host_signals(state) if record.run.serves and is_here(record) else {}
        # while our server still starts, its device is not known
        if record.run.serves and not record.run.elsewhere and "max_num_seqs" not in record.facts:
            return {"is_gpu": Signal(0.0, "", "device")} if record.run.device == "cpu" else {}
        devices = server_devices(state, record)
        if not devices:
            return host
        of_each = [self._of_device(state, record, device) for device in devices]
        return host | max(of_each, key=_trouble)

    def _of_device(self, state: SessionState, record: RunRecord, device: str) -> Signals:
        if device == "cpu":
            return {"is_gpu": Signal(0.0, "", "device")}
        since = max(state.session_time(state.now) - WINDOW_S, state.session_time(record.opened.t))
        readings = DeviceReadings(state, device, since)
        card = next((listed for listed in state.devices if listed.id == device), Device(device, ""))
        of_server = record.server_processes if record.run.elsewhere else []
        ours = [
            process
            for process in state.processes
            if process.kind == "compute" and (self._is_ours(process) or process.pid in of_server)
        ]
        # which program on the GPU is a server of others is known only by its processes
        sharing = (
            {}
            if record.run.elsewhere and not ours
            else sharing_signals(state.processes, ours, device, _used_bytes(state, device))
        )
        activity = activity_signals(state, record, since, device)
        # GPM counts the work of all processes on the card
        if "hw.other_processes" in sharing and sharing["hw.other_processes"].value > 0:
            activity = {
                name: signal for name, signal in activity.items() if name == "gpu.util_ratio"
            }
        return (
            {"is_gpu": Signal(1.0, "", "device")}
            | clock_signals(readings, card)
            | activity
            | tensor_core_signals(card)
            | pcie_signals(readings)
            | nvlink_signals(readings, state, record, ours)
            | sharing
            | self._error_signals(state, device.partition("/")[0])
            | numa_signals(state, record)
            | growth_signals(state, record)
        )

    def _error_signals(self, state: SessionState, whole: str) -> Signals:
        """Errors of the whole GPU, even if the run has only a slice of the GPU."""
        signals = {"hw.lost": Signal(float(whole in state.lost), "", "NVML")}
        latest = {
            name: state.readings.latest.get(series_key(f"gpu.{name}", whole))
            for name in ("xid_errors", "ecc_uncorrected")
        }
        if latest["xid_errors"] is not None:
            codes = [event.code for event in state.xids if event.device == whole]
            signals["hw.xid_errors"] = _xids(codes, HARDWARE_XIDS, "hardware errors")
            signals["hw.nvlink_xids"] = _xids(codes, NVLINK_XIDS, "errors of NVLink")
        if latest["ecc_uncorrected"] is not None:
            signals["hw.ecc_uncorrected"] = Signal(
                latest["ecc_uncorrected"], "", "NVML, since the driver was loaded"
            )
        for name in ("row_remap_pending", "row_remap_failed"):
            value = state.readings.latest.get(series_key(f"gpu.{name}", whole))
            if value is not None:
                signals[f"hw.{name}"] = Signal(value, "", "NVML")
        return signals | self._nvlink_errors(state, whole)

    def _nvlink_errors(self, state: SessionState, whole: str) -> Signals:
        rises: dict[str, float] = {}
        span_s = 0.0
        for key in [
            key
            for key in state.readings.latest
            if key.startswith("gpu.link_") and f"{{device={whole}/link:" in key
        ]:
            name = key.partition("{")[0]
            if name in ("gpu.link_replays", "gpu.link_recoveries", "gpu.link_crc_errors"):
                at, value = state.readings.sampled[key], state.readings.latest[key]
                since, first = self._first.get(key, (at, value))
                if value < first:  # the driver has restarted its counter
                    since, first = at, value
                self._first[key] = since, first
                rises[name] = rises.get(name, 0.0) + value - first
                span_s = max(span_s, at - since)
        if not rises or span_s <= 0:
            return {}
        again = rises.get("gpu.link_replays", 0.0) + rises.get("gpu.link_recoveries", 0.0)
        source = f"NVML, all links, over {span_s:.0f} s"
        return {
            "hw.nvlink_errors": Signal(again, "", f"{source}: replays and recoveries"),
            "hw.nvlink_crc_per_s": Signal(
                rises.get("gpu.link_crc_errors", 0.0) / span_s, "/s", source
            ),
        }


def _xids(codes: list[int], which: frozenset[int], what: str) -> Signal:
    """The number of these XIDs, with their codes in the source."""
    found = [code for code in codes if code in which]
    named = f": XID {', '.join(map(str, sorted(set(found))))}" if found else ""
    return Signal(float(len(found)), "", f"NVML events of {what} since the session began{named}")


def is_here(record: RunRecord) -> bool:
    """Whether the run's work is on this machine, as far as it is known: of a server that was not
    started here, whether its address is one of this machine's."""
    run = record.run
    return not run.elsewhere or bool(run.server_devices) or bool(run.server and run.server.here)


def server_devices(state: SessionState, record: RunRecord) -> list[str]:
    """Return the devices of a run; empty if the devices are not known. A server that was not
    started here has the devices of its processes. If these are not known and the server is on this
    machine: the machine's only GPU, or its CPU."""
    if record.run.server_devices or not record.run.elsewhere:
        return record.run.server_devices or [record.run.device]
    gpus = [device.id for device in state.devices if device.is_gpu]
    if not is_here(record) or len(gpus) > 1:
        return []
    return gpus or ["cpu"]


TROUBLE = (
    "hw.lost", "hw.xid_errors", "hw.ecc_uncorrected", "hw.row_remap_failed",
    "hw.thermal_time_ratio", "hw.power_brake_time_ratio", "hw.power_cap_time_ratio",
)  # fmt: skip


def _trouble(signals: Signals) -> tuple[float, ...]:
    """How ill a GPU is: of several that serve together, the findings are about the worst."""
    clock = signals.get("hw.sm_clock_ratio")
    values = [signals[name].value if name in signals else 0.0 for name in TROUBLE]
    return (*values, -(clock.value if clock else 1.0))


def _host_signals(state: SessionState) -> Signals:
    """The share of the time in which a task of this machine waited for a core."""
    series = state.readings.series.get(series_key(RUN_QUEUE, "cpu"))
    if series is None:
        return {}
    mean = _mean(series.weighed(state.session_time(state.now) - WINDOW_S))
    if mean is None:
        return {}
    source = f"/proc/pressure/cpu, mean of {mean[1]} readings"
    return {RUN_QUEUE: Signal(mean[0], "ratio", source)}


class DeviceReadings:
    """Samples of a device from `since` (session seconds) on, and which of them were taken under
    load."""

    def __init__(self, state: SessionState, device: str, since: float) -> None:
        self._state, self._device, self._since = state, device, since
        self.state_now = state.session_time(state.now)
        idle = {sample.t: sample.value for sample in self._points("clocks_idle")}
        self._busy = list(self._points("utilization_ratio"))
        self._loaded = {t for t, value, _ in self._busy if value >= LOADED and not idle.get(t, 0.0)}

    def mean(self, name: str) -> tuple[float, int] | None:
        """The mean under load and the number of readings; None if there are too few."""
        return _mean(sample for sample in self._points(name) if sample.t in self._loaded)

    def busy(self) -> tuple[float, int] | None:
        """The mean utilization of all readings and their number; None if there are too few."""
        return _mean(self._busy)

    def fact(self, name: str) -> float | None:
        """The newest value of a metric that does not depend on load."""
        return self._state.readings.latest.get(self._key(name))

    def newest_loaded(self, name: str) -> float | None:
        """The newest value, if it was read under load."""
        return (
            self.fact(name)
            if self._state.readings.sampled.get(self._key(name)) in self._loaded
            else None
        )

    def rise(self, name: str, window_s: float) -> tuple[float, float] | None:
        """Return the increase of a counter within the last `window_s`, and its time span in
        seconds. The first value may be a mean of older samples: it is the value in the middle of
        their time."""
        series = self._state.readings.series.get(self._key(name))
        samples = list(series.weighed(self.state_now - window_s)) if series is not None else []
        if len(samples) < 2:
            return None
        first, second, last = samples[0], samples[1], samples[-1]
        middle = first.t + (second.t - first.t) * (first.weight - 1) / (2 * first.weight)
        return last.value - first.value, last.t - middle

    def _points(self, name: str) -> Iterable[Weighed]:
        series = self._state.readings.series.get(self._key(name))
        return series.weighed(self._since) if series is not None else ()

    def _key(self, name: str) -> str:
        return series_key(f"gpu.{name}", self._device)


def _mean(samples: Iterable[Weighed]) -> tuple[float, int] | None:
    """The mean of `samples`, and their number; None if there are too few."""
    readings = list(samples)
    if len(readings) < MIN_READINGS:
        return None
    return statistics.fmean(
        [sample.value for sample in readings], [sample.weight for sample in readings]
    ), len(readings)


def activity_signals(state: SessionState, record: RunRecord, since: float, device: str) -> Signals:
    """`gpu.*_ratio`: how busy the device was over the steady steps, from session second `since` on.
    Empty before the run is steady; without GPM (before Hopper) or DCGM only the utilization of NVML
    is known."""
    if record.steady_t is None or not record.steps:
        return {}
    begin, end = (
        max(since, state.session_time(record.steady_t)),
        state.session_time(record.steps[-1].t),
    )
    signals: Signals = {}
    for name, (metric, meaning) in ACTIVITY.items():
        key = series_key(f"gpu.{metric}", device)
        series = state.readings.series.get(key)
        if (
            series is not None
            and (mean := _mean(sample for sample in series.weighed(begin) if sample.t <= end))
            is not None
        ):
            source = state.readings.substitutes.get(key, series.source)
            signals[name] = Signal(
                mean[0],
                "ratio",
                f"{source}, mean of {mean[1]} readings over the steady steps: {meaning}",
            )
    return signals


def tensor_core_signals(card: Device) -> Signals:
    """`gpu.bf16_speed_ratio`, `gpu.tf32_speed_ratio`: the dense peak of tensor cores over the peak
    of fp32, 1 where the card has no such units. A peak that is not known has no signal."""
    peaks = card.peaks
    if not peaks.fp32_flops_per_s:
        return {}
    slower = peaks.fp32_flops_per_s if peaks.precedes_ampere else None
    speeds = {"bf16": peaks.bf16_flops_per_s or slower, "tf32": peaks.tf32_flops_per_s or slower}
    source = f"dense peaks, {peaks.source}"
    return {
        f"gpu.{name}_speed_ratio": Signal(speed / peaks.fp32_flops_per_s, "x", source)
        for name, speed in speeds.items()
        if speed
    }


def clock_signals(readings: DeviceReadings, card: Device) -> Signals:
    """`hw.*`: clocks, causes of low clocks, power and temperature.

    A clock is compared with NVML's maximum. GeForce and workstation cards never reach that maximum
    at full load: the clock of the datasheet (boost clock) counts there. `hw.clock_unsure` is 1 for
    such a card if its boost clock is not known.
    """
    signals: Signals = {}
    busy = readings.busy()
    if busy is not None:
        signals["hw.busy_ratio"] = Signal(
            busy[0],
            "ratio",
            f"NVML utilization, mean of {busy[1]}: share of time in which any kernel ran",
        )
    clock, most = readings.mean("sm_clock_hz"), readings.fact("sm_clock_max_hz")
    boost = card.peaks.boost_clock_hz
    if clock is not None and most:
        usual = min(boost, most) if boost else most
        of_nvml = f"the boost clock; NVML names a maximum of {most / 1e6:.0f} MHz"
        which = f"{usual / 1e6:.0f} MHz ({of_nvml if boost else 'maximum of NVML'})"
        signals["hw.sm_clock_ratio"] = Signal(
            clock[0] / usual,
            "ratio",
            f"NVML, mean of {clock[1]} readings {UNDER_LOAD}, over {which}",
        )
    if clock is not None and boost:
        source = (
            f"NVML, mean of {clock[1]} readings {UNDER_LOAD}, over the datasheet's clock of"
            f" {boost / 1e6:.0f} MHz"
        )
        signals["hw.datasheet_clock_ratio"] = Signal(clock[0] / boost, "ratio", source)
    unsure = boost is None and GRAPHICS_CARD.search(card.name) is not None
    signals["hw.clock_unsure"] = Signal(
        float(unsure), "", "1: a graphics card whose boost clock is not in the table"
    )
    for name, causes in HELD.items():
        held = _held(readings, causes)
        if held is not None:
            signals[f"hw.{name}_time_ratio"] = held
    setting = readings.mean("clocks_app_setting")
    if setting is not None:
        signals["hw.app_clocks_ratio"] = Signal(
            setting[0], "ratio", f"NVML, share of {setting[1]} readings {UNDER_LOAD}"
        )
    power, limit = readings.mean("power_w"), readings.fact("power_limit_w")
    if power is not None and limit:
        signals["hw.power_ratio"] = Signal(
            power[0] / limit,
            "ratio",
            f"NVML, mean of {power[1]} readings {UNDER_LOAD}, over the limit",
        )
    temperature = readings.mean("temperature_c")
    if temperature is not None:
        signals["hw.temperature_c"] = Signal(
            temperature[0], "°C", f"NVML, mean of {temperature[1]} readings {UNDER_LOAD}"
        )
    for name, unit in (
        ("power_limit_w", "W"),
        ("power_limit_max_w", "W"),
        ("power_limit_default_w", "W"),
    ):
        value = readings.fact(name)
        if value is not None:
            signals[f"hw.{name}"] = Signal(value, unit, "NVML")
    memory = readings.fact("hbm_total_bytes")
    if memory is not None:
        signals["hw.memory_bytes"] = Signal(memory, "B", "NVML")
    if card.peaks.memory_bytes_per_s:
        signals["hw.memory_bytes_per_s"] = Signal(
            card.peaks.memory_bytes_per_s, "B/s", f"peak of the memory, {card.peaks.source}"
        )
    return signals


def _held(readings: DeviceReadings, causes: tuple[tuple[str, str], ...]) -> Signal | None:
    """The largest share of time in which one of the causes lowered the clocks."""
    means = []
    for counter, reason in causes:
        for name, how in ((counter, "counters of time"), (reason, "reasons at each reading")):
            mean = readings.mean(name) if name else None
            if mean is not None:
                means.append((*mean, how))
                break
    if not means:
        return None
    share, n, how = max(means)
    return Signal(share, "ratio", f"NVML {how}, mean of {n} readings {UNDER_LOAD}")


def pcie_signals(readings: DeviceReadings) -> Signals:
    """`link.pcie_*`: the link under load, the best link that card and slot support, and the
    traffic."""
    signals: Signals = {}
    for name in ("generation", "width"):
        now, most = (
            readings.newest_loaded(f"pcie_link_{name}"),
            readings.fact(f"pcie_link_{name}_max"),
        )
        if now and most:
            signals[f"link.pcie_{name}"] = Signal(now, "", f"NVML, {UNDER_LOAD}")
            signals[f"link.pcie_{name}_max"] = Signal(most, "", "NVML, GPU and slot together")
    if {"link.pcie_generation", "link.pcie_width"} <= signals.keys():
        lane = LANE_BYTES_PER_S.get(int(signals["link.pcie_generation"].value))
        if lane:
            peak = lane * signals["link.pcie_width"].value
            signals["link.pcie_peak_bytes_per_s"] = Signal(
                peak, "B/s", "generation and lanes now, one direction"
            )
    for direction in ("rx", "tx"):
        traffic = readings.mean(f"pcie_{direction}_bytes_per_s")
        if traffic is not None:
            signals[f"link.pcie_{direction}_bytes_per_s"] = Signal(
                traffic[0], "B/s", f"NVML, mean of {traffic[1]} readings {UNDER_LOAD}"
            )
    replays = readings.rise("pcie_replays", REPLAYS_S)
    if replays is not None and replays[1] >= MIN_REPLAYS_S:
        signals["link.pcie_replays_per_min"] = Signal(
            max(0.0, replays[0]) / replays[1] * 60, "/min", f"NVML, over {replays[1]:.0f} s"
        )
    return signals


def nvlink_signals(
    readings: DeviceReadings, state: SessionState, record: RunRecord, ours: list[Process]
) -> Signals:
    """`link.nvlink_*`: whether NVLink connects the GPUs of the run, its peak and its traffic."""
    signals: Signals = {}
    used = {process.device for process in ours}
    machines = {rank.host for rank in record.ranks.joined}
    joined = False if len(machines) > 1 else joined_by_nvlink(state.links, used)
    if joined is not None:
        signals["link.nvlink_joined"] = Signal(
            float(joined), "", "NVML topology, between the GPUs of the run"
        )
    device = next((device for device in state.devices if device.id == record.run.device), None)
    if device is not None and device.peaks.nvlink_bytes_per_s and joined:
        signals["link.nvlink_peak_bytes_per_s"] = Signal(
            device.peaks.nvlink_bytes_per_s / 2,
            "B/s",
            f"{device.peaks.source}: half of both directions",
        )
    traffic = [
        mean
        for mean in map(readings.mean, ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"))
        if mean is not None
    ]
    if traffic:
        value, n = max(traffic)
        signals["link.nvlink_bytes_per_s"] = Signal(
            value, "B/s", f"NVML, mean of {n} readings {UNDER_LOAD}, the busier direction"
        )
    return signals


def joined_by_nvlink(links: list[Link], used: set[str]) -> bool | None:
    """Whether NVLink connects all pairs of the `used` devices (of all devices, if fewer than two
    are known), or no pair.

    None if some pairs are connected and others not, or the path of a pair is not known.
    """
    paths = {frozenset((link.a, link.b)): link.path for link in links}
    pairs = (
        [frozenset(pair) for pair in itertools.combinations(used, 2)]
        if len(used) > 1
        else list(paths)
    )
    kinds = {paths[pair].startswith("NV") if pair in paths else None for pair in pairs}
    return kinds.pop() if len(kinds) == 1 else None


def _used_bytes(state: SessionState, device: str) -> float | None:
    """The least memory in use in the last seconds, because the list of processes is read less
    often. None if the driver's reserve is included."""
    used = state.readings.series.get(series_key("gpu.hbm_used_bytes", device))
    if used is None or series_key("gpu.hbm_reserved_bytes", device) not in state.readings.latest:
        return None
    return min(used.since(state.session_time(state.now) - LIST_AGE_S)[1], default=None)


def sharing_signals(
    processes: list[Process], ours: list[Process], device: str, used_bytes: float | None = None
) -> Signals:
    """`hw.other_*`: other processes that compute on `device`.

    Empty if the list is not reliable: it lacks our own processes, or it has no other processes
    although much of `used_bytes` belongs to no listed process (in a container the driver hides
    processes of other containers).
    """
    listed = [process for process in processes if process.device == device]
    here = [process for process in listed if process.kind == "compute"]
    own = {process.pid for process in ours}
    others = [process for process in here if process.pid not in own]
    if len(others) == len(here):
        return {}
    named = [process.memory_bytes for process in listed]
    if (
        not others
        and used_bytes is not None
        and None not in named
        and used_bytes - sum(map(float, filter(None, named))) > UNNAMED_BYTES
    ):
        return {}
    signals = {
        "hw.other_processes": Signal(
            float(len(others)),
            "",
            "NVML's list of processes, without processes that this console started",
        )
    }
    memory = [process.memory_bytes for process in others]
    if None not in memory:
        signals["hw.other_memory_bytes"] = Signal(
            float(sum(value or 0 for value in memory)), "B", "NVML's list of processes"
        )
    # a process without a share, among processes with one, did nothing
    if any(process.sm_ratio is not None for process in here):
        signals["hw.other_sm_ratio"] = Signal(
            min(1.0, sum(process.sm_ratio or 0.0 for process in others)),
            "ratio",
            "NVML, share of the SMs' time in the last seconds",
        )
    return signals


def numa_signals(state: SessionState, record: RunRecord) -> Signals:
    """`host.off_node_processes`, `hw.numa_node`: the processes of a user's job that may run on no
    core of the NUMA node of their GPU, and that node. Empty where the driver names no node, or
    several, and where the cores of a process are not known."""
    off_node: dict[str, int] = {}
    beside: dict[str, int] = {}
    unknown = False
    for rank, job in sorted(record.ranks.about.items()):
        device = _gpu_of(state, record, rank, job) or Device("", "")
        node, near = device.facts.get("numa_node", ""), device.facts.get("cpu_affinity", "")
        own, local = named_cores(job.cores), named_cores(near)
        if not node.isdigit() or not own or not local:
            unknown = True
            continue
        place = (
            f"process {rank} on cores {job.cores}, {device.id} at NUMA node {node} with cores"
            f" {near}"
        )
        (beside if own & local else off_node)[place] = int(node)
    if not off_node and (unknown or not beside):
        return {}
    places = off_node or beside
    named = "; ".join(itertools.islice(places, PLACES)) + ("; ..." if len(places) > PLACES else "")
    return {
        "host.off_node_processes": Signal(
            float(len(off_node)),
            "",
            f"os.sched_getaffinity of the training thread, and NVML: {named}",
        ),
        "hw.numa_node": Signal(
            float(next(iter(places.values()))),
            "",
            "NVML, nvmlDeviceGetMemoryAffinity: the first of these GPUs",
        ),
    }


def _gpu_of(state: SessionState, record: RunRecord, rank: int, job: JobFacts) -> Device | None:
    """The whole GPU of a process of a job: by its uuid, or by its process id in the list of the
    driver; for a job of one process, the GPU of the job."""
    by_uuid = (
        device.id
        for device in state.devices
        if job.device_uuid and device.uuid.partition("-")[2] == job.device_uuid
    )
    joined = record.ranks.joined
    # a process id of another machine means nothing
    here = len({process.host for process in joined}) <= 1
    by_process = (
        record.device_of[process.pid]
        for process in joined
        if here and process.rank == rank and process.pid in record.device_of
    )
    only = [record.run.device] if len(joined) <= 1 else []
    name = next(itertools.chain(by_uuid, by_process, only), "").partition("/")[0]
    return next((device for device in state.devices if device.id == name), None)


def growth_signals(state: SessionState, record: RunRecord) -> Signals:
    """`memory.growth_*`, `memory.grown_bytes`: growth of the peak since the run became steady.
    Training on a GPU only."""
    device = record.run.device
    series = state.readings.series.get(series_key("workload.memory_bytes", device))
    if (
        record.run.serves
        or record.steady_t is None
        or series is None
        or len(record.steps) < MIN_STEPS
    ):
        return {}
    times, values = series.since(state.session_time(record.steady_t))
    try:
        slope = steady_growth(times, values)
    except ValueError:
        return {}
    source = f"peak of torch's allocator over {times[-1] - times[0]:.0f} s"
    signals = {
        "memory.growth_bytes_per_s": Signal(
            slope, "B/s", f"{source}: median of slopes, lower 95 % bound"
        ),
        "memory.grown_bytes": Signal(values[-1] - values[0], "B", source),
    }
    limit = int(record.run.knobs.get("memory_limit_mb", 0)) * 2**20
    free = state.readings.latest.get(series_key("gpu.hbm_free_bytes", device))
    rooms = [(float(free), "NVML, free device memory")] if free is not None else []
    if limit:
        # the limit may be above what the card has
        rooms.append((limit - values[-1], "memory_limit_mb"))
    if rooms:
        room, source = min(rooms)
        signals["memory.room_bytes"] = Signal(max(0.0, room), "B", source)
    return signals
