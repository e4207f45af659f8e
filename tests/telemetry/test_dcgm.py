"""dcgm-exporter as a source, over a real socket: values to the unit, and every way to fail with its
reason."""

from __future__ import annotations

import socket
import time

import pytest

from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.metrics import CATALOGUE, FIELDS
from gpuconsole.telemetry.dcgm import DcgmSource
from gpuconsole.wire.events import Sample
from tests.fakes.dcgm import FakeDcgm, dcgm_page
from tests.waiting import wait_until

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000001"
GPUS = [
    Device(id="gpu:0", name="NVIDIA A100-SXM4-80GB", uuid=A, peaks=Peaks(memory_bytes_per_s=2e12)),
    Device(id="gpu:1", name="NVIDIA A100-SXM4-80GB", uuid=B),
    Device(id="cpu", name="host"),
]
METRICS = {field.metric for field in FIELDS} | {"gpu.hbm_bytes_per_s"}
MIB = 1 << 20


def values_of(source: DcgmSource, t: float, device: str = "gpu:0") -> dict[str, float]:
    """One reading; everything must be either a value or have a reason."""
    readings = [reading for reading in source.read(t) if isinstance(reading, Sample)]
    found = {reading.device: reading.values for reading in readings}
    assert all(reading.t == t for reading in readings)
    for gpu in source.devices():
        values, reasons = found.get(gpu.id, {}), source.unavailable()[gpu.id]
        assert values.keys() | reasons.keys() == METRICS
        assert not values.keys() & reasons.keys()
        assert all(reasons.values())
    return found.get(device, {})


def the_reason(source: DcgmSource, t: float = 1.0) -> str:
    """The one reason that everything has."""
    assert values_of(source, t) == {}
    reasons = {why for reasons in source.unavailable().values() for why in reasons.values()}
    assert len(reasons) == 1, reasons
    return reasons.pop()


def test_every_field_to_the_unit() -> None:
    page = dcgm_page(
        {
            A: {
                "DCGM_FI_PROF_SM_ACTIVE": "0.785000",
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "0.310000",
                "DCGM_FI_PROF_DRAM_ACTIVE": "0.420000",
                "DCGM_FI_PROF_PCIE_RX_BYTES": 12058624000,
                "DCGM_FI_DEV_GPU_UTIL": 57,
                "DCGM_FI_DEV_FB_USED": 61440,
                "DCGM_FI_DEV_POWER_USAGE": "312.500000",
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5000000123,
                "DCGM_FI_DEV_SM_CLOCK": 1410,
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3,
                "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
            },
            B: {"DCGM_FI_PROF_SM_ACTIVE": "0.250000", "DCGM_FI_PROF_DRAM_ACTIVE": "0.100000"},
        }
    )
    with FakeDcgm(page) as dcgm:
        source = DcgmSource(dcgm.url, lambda: GPUS)
        assert [gpu.id for gpu in source.devices()] == ["gpu:0", "gpu:1"]
        source.prime()
        assert values_of(source, 1.0) == pytest.approx(
            {
                "gpu.sm_active_ratio": 0.785,
                "gpu.tensor_active_ratio": 0.31,
                "gpu.dram_active_ratio": 0.42,
                "gpu.hbm_bytes_per_s": 0.42 * 2e12,
                "gpu.pcie_rx_bytes_per_s": 12058624000,
                "gpu.utilization_ratio": 0.57,
                "gpu.hbm_used_bytes": 61440 * MIB,
                "gpu.power_w": 312.5,
                "gpu.energy_j": 5000000.123,
                "gpu.sm_clock_hz": 1.41e9,
                "gpu.pcie_replays": 3,
                "gpu.row_remap_failed": 0,
            }
        )
        assert source.unavailable()["gpu:0"]["gpu.fp64_active_ratio"].startswith(
            "dcgm-exporter does not report DCGM_FI_PROF_PIPE_FP64"
        )
        assert values_of(source, 2.0, "gpu:1") == pytest.approx(
            {"gpu.sm_active_ratio": 0.25, "gpu.dram_active_ratio": 0.1}
        )
        assert (
            source.unavailable()["gpu:1"]["gpu.hbm_bytes_per_s"]
            == "the datasheet bandwidth of this device is not known"
        )


def test_a_gpu_that_opens_late_has_its_values() -> None:
    """A slow driver tells the UUID of a GPU some rounds later."""
    opened = [GPUS[0], Device(id="gpu:1", name="unknown GPU")]
    with FakeDcgm(dcgm_page({uuid: {"DCGM_FI_DEV_GPU_UTIL": 57} for uuid in (A, B)})) as dcgm:
        source = DcgmSource(dcgm.url, lambda: opened)
        source.prime()
        assert values_of(source, 1.0, "gpu:1") == {}
        opened[1:] = [GPUS[1]]
        assert values_of(source, 2.0, "gpu:1") == pytest.approx({"gpu.utilization_ratio": 0.57})


def test_a_counter_becomes_a_rate_over_the_time_between_two_collections() -> None:
    field, metric = "DCGM_FI_DEV_POWER_VIOLATION", "gpu.power_cap_time_ratio"
    with FakeDcgm(dcgm_page({A: {field: 7_000_000_000}})) as dcgm:
        source = DcgmSource(dcgm.url, lambda: GPUS[:1])
        assert values_of(source, 100.0) == {}
        assert "two collections" in source.unavailable()["gpu:0"][metric]
        # The exporter collects every 30 s: until then its page, and so our rate, stays as it is.
        values_of(source, 101.0)
        dcgm.page = dcgm_page({A: {field: 14_500_000_000}})
        assert values_of(source, 130.0)[metric] == pytest.approx(7.5 / 30)
        assert values_of(source, 131.0)[metric] == pytest.approx(7.5 / 30)
        dcgm.page = dcgm_page({A: {field: 75_000_000_000}})
        assert values_of(source, 190.0)[metric] == 1.0
        dcgm.page = dcgm_page({A: {field: 5}})  # the driver was loaded anew
        assert values_of(source, 200.0) == {}
        assert "two collections" in source.unavailable()["gpu:0"][metric]


def test_numbers_that_do_not_change_are_stale_after_a_while_and_come_back() -> None:
    with FakeDcgm(dcgm_page({A: {"DCGM_FI_DEV_GPU_TEMP": 40}})) as dcgm:
        source = DcgmSource(dcgm.url, lambda: GPUS[:1])
        assert values_of(source, 1000.0) == {"gpu.temperature_c": 40}
        assert values_of(source, 1090.0) == {"gpu.temperature_c": 40}
        assert the_reason(source, 1091.0) == "dcgm-exporter has returned the same numbers for 91 s"
        dcgm.page = dcgm_page({A: {"DCGM_FI_DEV_GPU_TEMP": 41}})
        assert values_of(source, 1092.0) == {"gpu.temperature_c": 41}


def test_what_dcgm_writes_for_no_value_and_nonsense_are_no_values() -> None:
    fields: dict[str, float | str] = {
        "DCGM_FI_PROF_SM_ACTIVE": "140737488355328.000000",
        "DCGM_FI_PROF_SM_OCCUPANCY": "17.5",
        "DCGM_FI_PROF_DRAM_ACTIVE": "NaN",
        "DCGM_FI_DEV_FB_USED": 9223372036854775794,
        "DCGM_FI_DEV_FB_FREE": 2147483632,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 9223372036854775792,
        "DCGM_FI_DEV_POWER_USAGE": "-1",
        "DCGM_FI_DEV_GPU_TEMP": "+Inf",
    }
    with FakeDcgm(dcgm_page({A: fields})) as dcgm:
        source = DcgmSource(dcgm.url, lambda: GPUS[:1])
        assert values_of(source, 1.0) == {}
        reasons = source.unavailable()["gpu:0"]
        assert reasons["gpu.sm_active_ratio"] == "DCGM has no value for DCGM_FI_PROF_SM_ACTIVE"
        assert (
            reasons["gpu.energy_j"] == "DCGM has no value for DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
        )
        assert (
            reasons["gpu.hbm_bytes_per_s"]
            == reasons["gpu.dram_active_ratio"]
            == "dcgm-exporter reported an impossible value"
        )


def test_gpus_that_are_not_there_slices_and_pods() -> None:
    shared = dcgm_page({A: {"DCGM_FI_DEV_GPU_TEMP": 50}}, pod='one\\"') + dcgm_page(
        {A: {"DCGM_FI_DEV_GPU_TEMP": 50}}, pod="two"
    )
    a_slice = dcgm_page(
        {A: {"DCGM_FI_PROF_SM_ACTIVE": "0.9"}}, GPU_I_ID="3", GPU_I_PROFILE="1g.10gb"
    )
    mig = Device(id="gpu:0/mig:1", name="1g.10gb", uuid="MIG-1")
    with FakeDcgm(a_slice + shared) as dcgm:
        source = DcgmSource(dcgm.url, lambda: [*GPUS, mig])
        assert values_of(source, 1.0) == {"gpu.temperature_c": 50}
        assert (
            source.unavailable()["gpu:1"]["gpu.power_w"] == "dcgm-exporter does not report this GPU"
        )
        assert (
            source.unavailable()["gpu:0/mig:1"]["gpu.power_w"]
            == "dcgm-exporter does not name MIG slices by UUID"
        )


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("", "the page has no DCGM metrics"),
        ("<html>hello</html>", "the page has no DCGM metrics"),
        ("DCGM_FI_DEV_GPU_TEMP{", "cannot be parsed"),
        ('DCGM_FI_DEV_GPU_TEMP{UUID="x"} warm\n', "cannot be parsed"),
        (b"DCGM_FI_\xff\xfe\x00{{{\n", "cannot be parsed"),
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 3\n', "the page has no DCGM metrics"),
    ],
)
def test_garbage_is_a_reason(page: str | bytes, reason: str) -> None:
    with FakeDcgm() as dcgm:
        dcgm.page = page
        assert reason in the_reason(DcgmSource(dcgm.url, lambda: GPUS))


def test_no_server_a_wrong_server_and_a_server_that_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    assert (
        the_reason(DcgmSource(f"http://127.0.0.1:{free}", lambda: GPUS))
        == "dcgm-exporter cannot be reached: Connection refused"
    )
    with FakeDcgm(dcgm_page({A: {"DCGM_FI_DEV_GPU_TEMP": 40}})) as dcgm:
        assert (
            the_reason(DcgmSource(dcgm.url + "/other", lambda: GPUS))
            == "dcgm-exporter answers 404 Not Found"
        )
        dcgm.status = 500
        assert (
            the_reason(DcgmSource(dcgm.url, lambda: GPUS))
            == "dcgm-exporter answers 500 Internal Server Error"
        )
        dcgm.status = 200
        assert values_of(DcgmSource(dcgm.url.removesuffix("/metrics"), lambda: GPUS), 1.0) == {
            "gpu.temperature_c": 40
        }
    for url in ("http://[::1", "file:///etc/passwd", "http://exa mple:1/", "gopher://127.0.0.1/"):
        assert the_reason(DcgmSource(url, lambda: GPUS)).startswith("dcgm-exporter cannot be re")


def test_a_server_that_hangs_costs_the_timeout_once_and_is_read_when_it_answers() -> None:
    with FakeDcgm(dcgm_page({A: {"DCGM_FI_DEV_GPU_TEMP": 40}})) as dcgm:
        dcgm.hang()
        source = DcgmSource(dcgm.url, lambda: GPUS[:1], timeout_s=0.2)
        began = time.monotonic()
        assert the_reason(source) == "dcgm-exporter does not answer within 0.2 s"
        assert source.under_way() == "waiting for dcgm-exporter"
        for _ in range(20):  # nor is it asked again meanwhile
            the_reason(source)
        assert time.monotonic() - began < 1.5
        wait_until(lambda: dcgm.asked)  # the other side may be late to notice
        assert dcgm.asked == 1
        dcgm.go_on.set()
        wait_until(lambda: values_of(source, 2.0) == {"gpu.temperature_c": 40}, 5)
        assert source.under_way() == ""


def test_the_table_names_what_exists() -> None:
    assert len({field.field for field in FIELDS}) == len(FIELDS)
    assert len({field.metric for field in FIELDS}) == len(FIELDS)
    for field in FIELDS:
        metric = CATALOGUE[field.metric]
        assert field.only_with == "" or field.only_with in CATALOGUE
        assert (field.kind == "counter") == (metric.kind == "counter"), field
