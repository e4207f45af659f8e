"""A calibration holds for the machine, driver and torch that it was taken with, and lies in every
snapshot."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuconsole.host.environment import (
    KEPT,
    cache_path,
    figures,
    fingerprint,
    load,
    machine_of,
    of_this_machine,
    save,
)
from gpuconsole.model.machine import CalibrationRecord, Device, Reached
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot

CPU = Device("cpu", "a CPU")
GPU = Device("gpu:0", "NVIDIA H200", uuid="GPU-1")
HERE = Environment(
    host="here", cpu="a CPU", cores=8, driver="580.1", torch="2.13.0", devices=[GPU, CPU]
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def record_of(
    environment: Environment, device: str = "cpu", value: float = 1e9
) -> CalibrationRecord:
    reached = [
        Reached("copy_bytes_per_s", "bytes/s", value, value, 0.0, 3),
        Reached("gemm_tf32_flops_per_s", "FLOP/s", reason="no GPU"),
    ]
    return CalibrationRecord(machine_of(environment), device, "2026-01-01T00:00:00Z", reached)


def test_each_device_has_its_own_and_a_new_one_replaces_it() -> None:
    assert load(HERE, "cpu") is None
    save(record_of(HERE, "cpu", 1e9))
    save(record_of(HERE, "gpu:0", 4e12))
    save(record_of(HERE, "cpu", 2e9))
    assert figures(HERE, "cpu") == {"copy_bytes_per_s": 2e9}
    assert figures(HERE, "gpu:0") == {"copy_bytes_per_s": 4e12}
    assert [record.device for record in of_this_machine(HERE)] == ["cpu", "gpu:0"]


@pytest.mark.parametrize(
    "changed",
    [
        {"torch": "2.14.0"},
        {"host": "there"},
        {"driver": "590.1"},
        {"cores": 4},
        {"cpu": "another CPU"},
        {"devices": [msgspec.structs.replace(GPU, uuid="GPU-2"), CPU]},
        {"devices": [CPU]},
    ],
)
def test_a_change_asks_for_a_new_one(changed: dict[str, object]) -> None:
    save(record_of(HERE))
    assert load(msgspec.structs.replace(HERE, **changed), "cpu") is None
    assert load(HERE, "cpu") is not None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"schema": "gpuconsole.calibration/2", "records": []}', b"\xff\x00"]
)
def test_a_file_of_another_kind_holds_none_and_is_replaced(content: bytes) -> None:
    cache_path().parent.mkdir(parents=True)
    cache_path().write_bytes(content)
    assert load(HERE, "cpu") is None
    save(record_of(HERE))
    assert load(HERE, "cpu") == record_of(HERE)


def test_the_file_does_not_grow_for_ever() -> None:
    for number in range(KEPT + 1):
        save(record_of(msgspec.structs.replace(HERE, host=f"node-{number}")))
    assert load(msgspec.structs.replace(HERE, host="node-0"), "cpu") is None
    assert load(msgspec.structs.replace(HERE, host=f"node-{KEPT}"), "cpu") is not None


def test_it_lies_in_every_snapshot() -> None:
    save(record_of(fingerprint([CPU], None)))
    assert fingerprint([CPU], None).calibration == {}  # whose is not said
    environment = fingerprint([CPU], None, device="cpu")
    assert make_snapshot(SessionState(), environment, 0.0).environment.calibration == {
        "copy_bytes_per_s": 1e9
    }
