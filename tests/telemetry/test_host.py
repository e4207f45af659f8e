"""The host source on this machine, and on one that lacks what it reads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.telemetry import host
from gpuconsole.wire.events import Sample


def read_twice(source: host.HostSource, gap_s: float = 0.2) -> dict[str, dict[str, float]]:
    source.prime()
    threading.Event().wait(gap_s)
    return {
        sample.device: sample.values
        for sample in source.read(time.monotonic())
        if isinstance(sample, Sample)
    }


def test_every_metric_is_a_sane_value_or_has_a_reason() -> None:
    source = host.HostSource()
    values = read_twice(source)
    missing = source.unavailable()["cpu"]
    assert values["cpu"].keys() | missing.keys() == {
        name for name in CATALOGUE if name.startswith("host.") and name != "host.core_busy_ratio"
    }
    assert not values["cpu"].keys() & missing.keys()
    cores = psutil.cpu_count()
    assert values.keys() == {"cpu", *(f"cpu:{core}" for core in range(cores))}
    assert all(0 <= values[f"cpu:{core}"]["host.core_busy_ratio"] <= 1 for core in range(cores))
    assert 0 <= values["cpu"]["host.cores_busy"] <= cores
    assert 0 < values["cpu"]["host.memory_used_bytes"] < values["cpu"]["host.memory_total_bytes"]
    assert all(value >= 0 for value in values["cpu"].values())
    assert all(values["cpu"].get(name, 0) <= 1 for name in host.PRESSURE)


def test_only_cores_that_the_console_may_use_are_busy_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [100.0, 100.0, 50.0, 0.0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2}, raising=False)
    source = host.HostSource()
    source.prime()
    busy = next(
        sample.values["host.cores_busy"]
        for sample in source.read(0.0)
        if isinstance(sample, Sample)
    )
    assert busy == 1.5


def test_a_busy_loop_shows_as_a_busy_core() -> None:
    source = host.HostSource()
    source.prime()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    busy = next(
        sample.values["host.cores_busy"]
        for sample in source.read(0.0)
        if isinstance(sample, Sample)
    )
    assert busy > 0.5


def test_the_cpu_is_a_device_with_a_name_and_memory() -> None:
    cpu = host.cpu_device()
    assert cpu.id == "cpu"
    assert not cpu.is_gpu
    assert cpu.name
    assert 0 < cpu.memory_bytes <= psutil.virtual_memory().total


def test_pressure_is_the_growth_of_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpu"
    monkeypatch.setattr(host, "PRESSURE", {"host.run_queue_delay_ratio": file})
    file.write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )
    source = host.HostSource()
    source.prime()
    start = time.monotonic()
    threading.Event().wait(0.2)
    file.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1050000\n")
    (sample, *_) = source.read(0.0)
    assert isinstance(sample, Sample)
    elapsed = time.monotonic() - start
    assert sample.values["host.run_queue_delay_ratio"] == pytest.approx(0.05 / elapsed, rel=0.1)


def test_no_pressure_files_and_no_disks_are_reasons_and_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, odd = tmp_path / "gone", tmp_path / "odd"
    odd.write_text("nothing here\n")
    monkeypatch.setattr(
        host,
        "PRESSURE",
        {
            "host.run_queue_delay_ratio": gone,
            "host.io_pressure_ratio": tmp_path,
            "host.memory_pressure_ratio": odd,
        },
    )
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: None)
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: {})
    source = host.HostSource()
    values = read_twice(source, 0.01)["cpu"]
    assert source.unavailable()["cpu"] == {
        "host.run_queue_delay_ratio": f"the kernel has no {gone}",
        "host.io_pressure_ratio": f"{tmp_path}: Is a directory",
        "host.memory_pressure_ratio": f"{odd} has no line for some tasks",
        "host.disk_read_bytes_per_s": "no physical disk is visible",
        "host.disk_write_bytes_per_s": "no physical disk is visible",
        "host.net_rx_bytes_per_s": "no network interface but loopback",
        "host.net_tx_bytes_per_s": "no network interface but loopback",
    }
    assert values.keys() == {
        "host.cores_busy",
        "host.memory_used_bytes",
        "host.memory_total_bytes",
        *host.WHOLE_MACHINE,
    }


def test_load_and_swap_are_those_of_the_kernel_or_have_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal:  100 kB\nSwapTotal:   3072 kB\nSwapFree:    1024 kB\n")
    monkeypatch.setattr(host, "MEMORY", memory)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.25, 9.0, 9.0))
    values = read_twice(host.HostSource(), 0.01)["cpu"]
    assert [values[name] for name in host.WHOLE_MACHINE] == [1.25, 2 * 2**20, 3 * 2**20]
    memory.write_text("MemTotal:  100 kB\n")
    source = host.HostSource()
    assert not read_twice(source, 0.01)["cpu"].keys() & set(host.WHOLE_MACHINE)
    assert all(str(memory) in source.unavailable()["cpu"][name] for name in host.WHOLE_MACHINE)


def test_a_counter_that_goes_back_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: Iterator[tuple[dict[str, float], dict[str, str]]] = iter(
        [({"host.net_rx_bytes_per_s": 100.0}, {}), ({"host.net_rx_bytes_per_s": 10.0}, {})]
    )
    monkeypatch.setattr(host, "_cumulative", lambda: next(readings))
    source = host.HostSource()
    values = read_twice(source, 0.01)["cpu"]
    assert "host.net_rx_bytes_per_s" not in values
    assert source.unavailable()["cpu"] == {
        "host.net_rx_bytes_per_s": "the counter of the system decreased"
    }


@pytest.mark.parametrize(
    ("cards", "expected"), [((), (113.0, 224.0)), (("eth0", "eth1"), (13.0, 24.0))]
)
def test_loopback_does_not_count_and_bridges_only_where_no_card_is_seen(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cards: tuple[str, ...],
    expected: tuple[float, float],
) -> None:
    class Nic:
        def __init__(self, received: int, sent: int) -> None:
            self.bytes_recv, self.bytes_sent = received, sent

    monkeypatch.setattr(
        psutil,
        "net_io_counters",
        lambda pernic: {
            "lo": Nic(1000, 1000),
            "eth0": Nic(3, 4),
            "eth1": Nic(10, 20),
            "docker0": Nic(100, 200),
        },
    )
    monkeypatch.setattr(host, "NETWORK", tmp_path)
    for card in cards:
        (tmp_path / card / "device").mkdir(parents=True)
    assert host._net_bytes() == expected


def test_a_container_limit_is_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{1 << 30}\n")
    (tmp_path / "memory.current").write_text("700000000\n")
    (tmp_path / "memory.stat").write_text("anon 500000000\ninactive_file 150000000\n")
    assert host.memory_bytes() == (550000000, 1 << 30)
    (tmp_path / "memory.max").write_text("max\n")
    assert host.memory_bytes()[1] == psutil.virtual_memory().total
