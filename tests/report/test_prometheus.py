"""What is exported when, and under which names."""

from __future__ import annotations

import re

from gpuconsole.model.machine import Device, Process
from gpuconsole.model.metrics import CATALOGUE, FIELDS
from gpuconsole.model.serving import Request
from gpuconsole.report.prometheus.collector import NAMES, OWN, ScrapeCollector
from gpuconsole.report.prometheus.scrape import scrape
from gpuconsole.session.freshness import why_not_fresh
from gpuconsole.session.gpu_state import VITAL
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import (
    DeviceLost,
    Devices,
    Hello,
    Processes,
    Requests,
    RunOpened,
    Sample,
    SourceState,
    Unavailable,
    Xid,
)
from tests.diagnosis.test_run_figures import FACTS, session, stored

GPU = Device(id="gpu:0", name="NVIDIA H200", uuid="GPU-1", facts={"pci": "00000000:3b:00.0"})
CPU = Device(id="cpu", name="AMD EPYC")
UNITS = {
    "bytes": "bytes",
    "W": "watts",
    "J": "joules",
    "°C": "celsius",
    "Hz": "hertz",
    "s": "seconds",
    "ratio": "ratio",
}
UNITS |= {"bytes/s": "bytes_per_second"}


class World:
    """A session state at a time of our own, and what a scrape shows of it."""

    def __init__(self, *devices: Device, interval_s: float = 1.0) -> None:
        self.now = 1000.0
        self.state = SessionState(interval_s)
        self.state.apply(Hello(self.now, "sampler", 1, "0", 0.0))
        self.state.apply(Devices(self.now, list(devices or (GPU, CPU)), "580"))

    def sample(
        self, device: str = "gpu:0", sources: dict[str, str] | None = None, **values: float
    ) -> None:
        self.state.apply(
            Sample(
                self.now,
                device,
                {f"gpu.{name}": value for name, value in values.items()},
                sources or {},
            )
        )

    def shows(self, name: str) -> list[tuple[dict[str, str], float]]:
        families = ScrapeCollector(scrape(self.state, self.now), "box").collect()
        return [
            (sample.labels, sample.value)
            for family in families
            for sample in family.samples
            if sample.name == name
        ]

    def value(self, name: str) -> float | None:
        found = self.shows(name)
        return found[0][1] if found else None


def test_names_follow_the_conventions() -> None:
    assert len(set(NAMES.values())) == len(CATALOGUE)
    for metric in CATALOGUE.values():
        name = NAMES[metric.name]
        assert re.fullmatch(r"gpuconsole_[a-z0-9_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        unit = UNITS.get(metric.unit)
        assert unit is None or name.removesuffix("_total").endswith(f"_{unit}"), name
    assert NAMES["gpu.energy_j"] == "gpuconsole_gpu_energy_joules_total"
    assert NAMES["gpu.power_limit_max_w"] == "gpuconsole_gpu_power_limit_max_watts"
    assert NAMES["workload.tokens_per_j"] == "gpuconsole_workload_tokens_per_joule"
    assert {field.metric for field in FIELDS} <= CATALOGUE.keys()


def test_a_value_stands_while_its_reader_answers() -> None:
    world = World()
    world.sample(power_w=350, ecc_corrected=3)
    world.now += 4
    world.sample(power_w=351)
    world.now += 4
    assert (world.value(NAMES["gpu.power_w"]), world.value(NAMES["gpu.ecc_corrected"])) == (351, 3)
    assert world.value("DCGM_FI_DEV_POWER_USAGE") == 351
    world.now += 1.5
    assert world.value(NAMES["gpu.power_w"]) is None
    assert world.value("DCGM_FI_DEV_POWER_USAGE") is None
    assert world.value("gpuconsole_sample_age_seconds") == 5.5
    assert world.value("gpuconsole_sampler_up") == 0
    assert world.shows("gpuconsole_source_stuck_seconds") == [({"source": "sampler"}, 5.5)]
    assert (
        why_not_fresh(world.state, world.state.session_time(world.now))
        == "the sampler has reported nothing for 6 s"
    )


def test_a_slow_beat_is_no_staleness() -> None:
    world = World(interval_s=15)
    world.sample(power_w=350)
    world.now += 45
    assert world.value(NAMES["gpu.power_w"]) == 350
    slow = World()
    slow.state.apply(SourceState(slow.now, "nvml", 4.0))
    slow.sample(power_w=350)
    slow.now += 11
    assert slow.value(NAMES["gpu.power_w"]) == 350


def test_another_reader_does_not_keep_old_values_alive() -> None:
    world = World()
    world.sample(power_w=350)
    for _ in range(6):
        world.now += 1
        world.sample(sources={"gpu.sm_active_ratio": "dcgm"}, sm_active_ratio=0.5)
    assert world.value(NAMES["gpu.power_w"]) is None
    assert world.value(NAMES["gpu.sm_active_ratio"]) == 0.5


def test_what_is_missing_has_its_reason_until_it_is_back() -> None:
    world = World()
    world.sample(power_w=350, temperature_c=60)
    world.state.apply(Unavailable(world.now, "gpu:0", {"gpu.power_w": "not supported"}))
    assert world.value(NAMES["gpu.power_w"]) is None
    labels = {"device": "gpu:0", "metric": "gpu.power_w", "reason": "not supported"}
    assert world.shows("gpuconsole_unavailable") == [(labels, 1)]
    world.sample(power_w=351)
    assert world.shows("gpuconsole_unavailable") == []
    assert world.value(NAMES["gpu.power_w"]) == 351


def test_a_loss_takes_gpu_and_links_and_ends_with_new_values() -> None:
    world = World()
    world.sample(power_w=350)
    world.sample("gpu:0/link:2", link_up=1)
    assert world.shows(NAMES["gpu.link_up"])[0][0] == {
        "device": "gpu:0/link:2",
        "uuid": "GPU-1",
        "model": "NVIDIA H200",
    }
    world.state.apply(DeviceLost(world.now, "gpu:0", "fell\noff\x1b[31m"))
    world.sample(power_w=1)  # of the same round
    world.now += 1
    world.sample(sources={"gpu.power_w": "dcgm"}, power_w=2)
    assert world.shows("gpuconsole_device_lost") == [
        ({"device": "gpu:0", "reason": "fell off\\x1b[31m"}, 1)
    ]
    assert world.value(NAMES["gpu.power_w"]) is None
    assert world.value(NAMES["gpu.link_up"]) is None
    world.state.apply(Hello(world.now, "sampler", 2, "0", 0.0))
    assert world.value("gpuconsole_device_lost") == 1  # until the new sampler knows its devices
    world.sample(power_w=352)
    assert world.value(NAMES["gpu.power_w"]) == 352
    assert world.shows("gpuconsole_device_lost") == []


def test_dcgm_names_only_where_they_mean_the_same() -> None:
    world = World(GPU, Device(id="gpu:0/mig:1", name="1g.18gb", uuid="MIG-1"))
    world.sample(pcie_rx_bytes_per_s=1e9, utilization_ratio=0.57, xid_errors=0)
    world.sample("gpu:0/mig:1", hbm_used_bytes=1 << 30)
    labels = {
        "gpu": "0",
        "UUID": "GPU-1",
        "pci_bus_id": "00000000:3B:00.0",
        "device": "nvidia0",
        "Hostname": "box",
    }
    assert world.shows("DCGM_FI_DEV_GPU_UTIL") == [(labels, 57)]
    assert world.value("DCGM_FI_PROF_PCIE_RX_BYTES") is None  # without GPM, over 20 ms
    world.sample(sources={"gpu.sm_active_ratio": "dcgm"}, sm_active_ratio=0.5)
    assert world.value("DCGM_FI_PROF_PCIE_RX_BYTES") is None
    world.sample(sm_active_ratio=0.5)
    assert world.value("DCGM_FI_PROF_PCIE_RX_BYTES") == 1e9
    assert world.value("DCGM_FI_DEV_XID_ERRORS") == 0
    world.state.apply(Xid(world.now, "gpu:0", 79))
    assert world.value("DCGM_FI_DEV_XID_ERRORS") == 79
    assert world.value("DCGM_FI_DEV_FB_USED") is None
    assert world.shows(NAMES["gpu.hbm_used_bytes"]) == [
        ({"device": "gpu:0/mig:1", "uuid": "MIG-1", "model": "1g.18gb"}, 1 << 30)
    ]


def test_a_stuck_source_is_told_and_counted_on() -> None:
    world = World()
    world.sample(power_w=350)
    world.state.apply(
        SourceState(world.now, "nvml", 1.0, stuck_s=3.0, detail="nvmlDeviceGetPowerUsage of gpu:0")
    )
    world.now += 4
    world.state.apply(Sample(world.now, "cpu", {"host.cores_busy": 1.0}))
    assert ({"source": "nvml"}, 7.0) in world.shows("gpuconsole_source_stuck_seconds")
    assert (
        why_not_fresh(world.state, world.state.session_time(world.now))
        == "nvml has not answered for 7 s: nvmlDeviceGetPowerUsage of gpu:0"
    )
    world.now += 2
    assert why_not_fresh(world.state, world.state.session_time(world.now)).startswith(
        "the newest sample of gpu:0 is 6 s old; nvml has not answered for 9 s"
    )


def test_the_own_metrics_are_all_shown() -> None:
    world = World(GPU, Device(id="gpu:1", name="unknown GPU"), CPU)
    world.sample(power_w=350, utilization_ratio=0.9)
    world.state.apply(DeviceLost(world.now, "gpu:7", "gone"))
    world.state.apply(Unavailable(world.now, "cpu", {"host.cores_busy": "no"}))
    world.state.apply(Unavailable(world.now, "gpu:1", dict.fromkeys(VITAL, "no permission")))
    world.state.apply(SourceState(world.now, "nvml", 1.0))
    world.state.apply(RunOpened(world.now, "1", "serve-chat", "inference.serving", {}, "gpu:0"))
    world.state.apply(Requests(world.now, [Request(world.now, 0.0, 0.1, 1.0, 10, 10)], 1))
    trains = World()
    trains.now, trains.state = 17.0, stored(session({**FACTS, "peak_flops_per_s": 2e11}))
    missing = [name for name in OWN if not (world.shows(name) or trains.shows(name))]
    assert missing == []


def test_the_state_of_a_gpu_and_its_idle_time_are_exported() -> None:
    world = World()
    quiet = {"power_w": 80, "sm_active_ratio": 0, "utilization_ratio": 0, "hbm_used_bytes": 4e10}

    def told() -> tuple[list[str], float | None]:
        states = [labels["state"] for labels, _ in world.shows("gpuconsole_gpu_state")]
        return states, world.value("gpuconsole_gpu_idle_seconds")

    world.state.apply(Processes(world.now, [Process(4242, "gpu:0")]))
    world.sample(**quiet)
    assert told() == (["busy"], 0)
    for _ in range(250):
        world.now += 1
        world.sample(**quiet)
    assert told() == (["idle"], 250)
    world.sample(**quiet | {"row_remap_pending": 1})
    assert told() == (["sick"], 250)
    world.sample(**quiet | {"row_remap_pending": 0, "utilization_ratio": 0.5})
    assert told() == (["busy"], 0)
    world.now += 20
    assert told() == (["silent"], None)
