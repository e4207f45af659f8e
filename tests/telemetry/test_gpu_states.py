"""What a GPU does, in every view: "free" and "busy" need a proof. The cases are of public issues:
dcgm-exporter 604, nvitop 139, WSL 7162, nvtop 124."""

from __future__ import annotations

import json
import os

import pytest

from gpuconsole.cli.commands.machine.doctor import MAX_LABEL_LENGTH, folded, report
from gpuconsole.report.parts import Line
from tests.cli.exporting import Exporter
from tests.conftest import Cli, Machine
from tests.telemetry.overview import IDLE, row_of, screen, view_of
from tests.waiting import wait_until

HALF_DEAD = tuple(
    f"gpu 0 error nvmlDeviceGet{call} 999"
    for call in ("UtilizationRates", "Temperature", "TemperatureV", "ClockInfo")
)
"""dcgm-exporter 319: memory, power and the SMs still answer."""
USED = "gpu 0 memory_used_bytes 1.5e9"
NO_UTILIZATION = ("gpu 0 gpm_support 0", "gpu 0 error nvmlDeviceGetUtilizationRates 3")


@pytest.mark.parametrize(
    ("lines", "state", "reason"),
    [
        (("gpu 0 error nvmlDeviceGetHandleByIndex 999",), "n/a", "unknown driver error"),
        (
            ("gpu 0 error nvmlDeviceGetHandleByIndex 8",),
            "n/a",
            "the external power cables are not attached",
        ),
        (("gpu 0 error * 999",), "n/a", "unknown driver error"),
        (NO_UTILIZATION, "n/a", "util: not supported on this device"),
        (
            ("gpu 0 utilization_pct 1980", "gpu 0 gpm_support 0"),
            "n/a",
            "util: the driver reported an impossible value",
        ),
        (
            ("gpu 0 error nvmlDeviceGetComputeRunningProcesses_v3 4",),
            "n/a",
            "processes: no permission",
        ),
        (("gpu 0 memory_used_bytes 13.8e9",), "n/a", "12.9 GiB used, no process seen"),
        ((), "free", None),
        ((USED, "gpu 0 utilization_pct 100", "gpu 0 gpm 2 0.7"), "busy", None),
        ((USED, "gpu 0 utilization_pct 50"), "busy", None),
        (("gpu 0 field 144 1",), "sick", "row remap pending"),
        (("gpu 0 field 145 1",), "sick", "worn memory"),
        (("gpu 0 nvlinks 12",), "sick", "12 of 18 NVLinks"),
        (("gpu 0 nvlinks 0",), "sick", "0 of 18 NVLinks"),
        (HALF_DEAD, "sick", "3 of 6 readings fail"),
        (("gpu 0 clocks_reasons 64",), "sick", "heat slowdown"),
        (
            (
                "gpu 0 utilization_pct 97",
                "gpu 0 gpm 2 97",
                "gpu 0 error nvmlDeviceGetComputeRunningProcesses_v3 4",
            ),
            "busy",
            None,
        ),
        ((*NO_UTILIZATION, f"gpu 0 process {os.getpid()} compute 5e6 -1"), "busy", None),
        (("gpu 0 lost 1",), "lost", "GPU is lost"),
    ],
)
def test_free_and_busy_need_a_proof(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    lines: tuple[str, ...],
    state: str,
    reason: str | None,
) -> None:
    """The screen, `devices` and its JSON say the same of gpu:0; gpu:1 is idle."""
    _, environment = machine("gpus 2", *IDLE, *lines)
    view = view_of(environment, monkeypatch)
    told = screen(view)[0].split(" · ")
    free = "2 free: gpu:0-1" if state == "free" else "1 free: gpu:1"
    assert told[0].endswith("2 GPUs") and told[1].strip() == free
    assert state == "free" or f"1 {state}" in told[2]
    row = row_of(view, "gpu:0", 170)
    assert reason is None or row.count(reason) == 1, "one thing is said once"
    assert ("free" in row) == (state == "free") and (reason is None or reason in row), row


def test_every_view_says_that_a_gpu_without_a_handle_is_not_known(
    machine: Machine, cli: Cli
) -> None:
    _, environment = machine(
        "gpus 3", *IDLE, "gpu 1 error nvmlDeviceGetHandleByIndex 4", "gpu 2 error * 999"
    )
    first, second, third, host = json.loads(cli("devices", "--json", env=environment).stdout)[
        "devices"
    ]
    assert (first["state"], first["state_reason"]) == ("free", None)
    assert (second["state"], second["state_reason"]) == ("n/a", "no permission")
    assert (third["state"], third["state_reason"]) == ("n/a", "unknown driver error")
    assert "state" not in host
    short = cli("devices", env=environment).stdout
    assert "gpu:1  n/a: no permission" in short and "gpu:2  n/a: unknown driver error" in short
    listed = cli("devices", "--long", env=environment).stdout
    assert (
        "state: free" in listed
        and "state: n/a: no permission" in listed
        and listed.count("no permission") == 1
    )
    told = " ".join(cli("doctor", env=environment).stdout.split())
    assert (
        "gpu:1 unknown GPU; n/a: no permission" in told
        and "gpu:2 unknown GPU; n/a: unknown driver error" in told
    )


def test_the_exporter_says_which_gpus_give_no_value(machine: Machine) -> None:
    _, environment = machine(
        "gpus 3", *IDLE, "gpu 1 error nvmlDeviceGetHandleByIndex 4", "gpu 2 error * 999"
    )
    with Exporter(environment).ready() as exporter:
        wait_until(
            lambda: exporter.value("gpuconsole_device_unreadable", "gpu:2") == 1,
            what="the third GPU",
        )
        assert exporter.value("gpuconsole_device_unreadable", "gpu:1", reason="no permission") == 1
        assert exporter.values("gpuconsole_device_unreadable").keys() == {"gpu:1", "gpu:2"}
        assert exporter.get("/healthz") == (
            200,
            "ok\ngpu:1 is n/a: no permission\ngpu:2 is n/a: unknown driver error\n",
        )


SICK = (
    "gpu 1 field 144 1",
    "gpu 2 nvlinks 12",
    *(line.replace("gpu 0", "gpu 3") for line in HALF_DEAD),
    "gpu 4 ecc_pending 0",
)


def test_the_doctor_and_the_json_say_what_a_sick_gpu_has_and_what_to_do(
    machine: Machine, cli: Cli
) -> None:
    _, environment = machine("gpus 5", *IDLE, *SICK)
    listed = json.loads(cli("devices", "--json", env=environment).stdout)["devices"][:-1]
    assert [(gpu["state"], gpu["state_reason"]) for gpu in listed] == [
        ("free", None),
        ("sick", "row remap pending"),
        ("sick", "12 of 18 NVLinks"),
        ("sick", "3 of 6 readings fail"),
        ("free", None),
    ]
    assert [gpu["facts"].get("ecc_pending") for gpu in listed] == [None, None, None, None, "off"]
    told = " ".join(cli("doctor", env=environment).stdout.split())
    for words in (
        "gpu:1 NVIDIA H200; GPM works; sick: row remap pending",
        "gpu:1 advice a faulty memory row will be replaced at the next GPU reset",
        "gpu:2 advice 12 of 18 NVLinks are active.",
        "gpu:3 advice unknown driver error for a part of the readings",
        "gpu:4 advice ECC will be off after the next GPU reset",
    ):
        assert words in told, words


def test_the_exporter_names_the_sick_gpus(machine: Machine) -> None:
    _, environment = machine("gpus 5", *IDLE, *SICK)
    with Exporter(environment).ready() as exporter:
        wait_until(
            lambda: len(exporter.values("gpuconsole_gpu_state", state="sick")) == 3,
            what="three sick GPUs",
        )
        assert exporter.values("gpuconsole_gpu_state", state="free").keys() == {"gpu:0", "gpu:4"}
        assert exporter.values("gpuconsole_gpu_idle_seconds") == {"gpu:0": 0, "gpu:4": 0}
        assert exporter.get("/healthz") == (
            200,
            "ok\ngpu:1 is sick: row remap pending\ngpu:2 is sick: 12 of 18 NVLinks\n"
            "gpu:3 is sick: 3 of 6 readings fail\n",
        )


@pytest.mark.parametrize("width", [80, 120, 170])
def test_the_reason_of_an_unknown_state_can_be_read_at_every_width(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    _, environment = machine(
        "gpus 2",
        *IDLE,
        "gpu 0 memory_used_bytes 13.8e9",
        "gpu 1 error nvmlDeviceGetHandleByIndex 999",
    )
    view = view_of(environment, monkeypatch)
    # in the line of the GPU, or in the line below
    assert any("12.9 GiB used, no process seen" in row for row in screen(view, width))
    assert "unknown driver error" in row_of(view, "gpu:1", width)


CARDS = {
    "RTX 3090": (24_564, 450_000),
    "A100-SXM4-40GB": (40_960, 400_000),
    "H100 80GB HBM3": (81_559, 700_000),
    "B300": (294_912, 1_400_000),
}
"""The memory in MiB and the power limit in mW of cards, as NVML reports them."""


@pytest.mark.parametrize("name", list(CARDS))
def test_the_table_of_cards_of_every_size_stands_below_its_heads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    memory_mib, limit_mw = CARDS[name]
    _, environment = machine(
        "gpus 2",
        f"gpu * name NVIDIA {name}",
        f"gpu * memory_total_bytes {memory_mib << 20}",
        f"gpu * memory_used_bytes {int(0.88 * (memory_mib << 20))}",
        f"gpu * power_limit_mw {limit_mw}",
        f"gpu * power_mw {limit_mw + 20_000}",
    )
    view = view_of(environment, monkeypatch)
    for width in (80, 120, 200):
        (heads,) = (row for row in screen(view, width) if "state" in row and "power" in row)
        for gpu in ("gpu:0", "gpu:1"):
            row = row_of(view, gpu, width)
            watts = f"{limit_mw // 1000 + 20}/{limit_mw // 1000} W"
            assert row[: heads.index("power") + len("power")].endswith(watts), (heads, row)
            assert row[heads.index("HBM used") :].lstrip(" 0123456789./").startswith("GiB"), row
            assert row[heads.index("temp") - 2 : heads.index("temp")] == "  ", row
            assert "…" not in row, row


def test_a_card_without_utilization_keeps_its_other_figures(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GT 710 beside cards of other kinds."""
    _, environment = machine(
        "gpus 3",
        *IDLE,
        "gpu * gpm_support 0",
        "gpu 0 name NVIDIA GeForce GT 710",
        "gpu 0 memory_total_bytes 2097152000",
        "gpu 0 memory_used_bytes 300e6",
        "gpu 0 error nvmlDeviceGetUtilizationRates 3",
        "gpu 0 error nvmlDeviceGetPowerUsage 3",
        "gpu 0 fan_pct 40",
        "gpu 0 temperature_c 51",
        "gpu 2 name NVIDIA RTX A6000",
    )
    view = view_of(environment, monkeypatch)
    row = row_of(view, "gpu:0", 170)
    assert "0.28/1.95 GiB" in row, row
    assert " 51" in row and " 40 %" in row and "util: not supported on this device" in row, row
    assert "GT 710" in row


def test_slices_are_not_counted_as_gpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Root sees all of them; the process in a slice is one of its GPU, too."""
    slices = [
        "mig 1",
        "mig_slice 3 19000000000 1000000",
        "mig_slice 9 38000000000 1000000",
        "process 4101 compute 1e6 -1",
    ]
    _, environment = machine("gpus 2", *IDLE, *(f"gpu 1 {line}" for line in slices))
    view = view_of(environment, monkeypatch)
    told = "2 GPUs with 2 MIG slices · 1 free: gpu:0 · 1 busy · 1 process"
    assert told in screen(view)[0]
    assert "NVML works, 2 GPUs with 2 MIG slices" in " ".join(
        cli("doctor", env=environment).stdout.split()
    )


@pytest.mark.parametrize(("second", "state"), [(0, "free"), (50, "busy")])
def test_the_slices_say_what_a_gpu_in_mig_mode_does(
    machine: Machine, cli: Cli, second: int, state: str
) -> None:
    slices = [
        "mig 1",
        "mig_slice 3 19000000000 1000000",
        "mig_slice 9 38000000000 1000000",
        f"mig_gpm 9 2 {second}",
    ]
    none = "gpu 0 error nvmlDeviceGetUtilizationRates 3"
    _, environment = machine("gpus 1", *IDLE, none, *(f"gpu 0 {line}" for line in slices))
    devices = json.loads(cli("devices", "--json", env=environment).stdout)["devices"]
    assert [device["state"] for device in devices[:-1]] == [state, "free", state]


def test_labels_of_the_doctor_name_ranges_of_links_on_ranges_of_gpus() -> None:
    links = [f"gpu:{gpu}/link:{link}" for gpu in range(16) for link in range(18)]
    assert folded(links) == "gpu:0-15/link:0-17"
    assert folded(["gpu:0", "gpu:1", "gpu:3", "cpu"]) == "gpu:0-1, gpu:3, cpu"
    assert (
        folded(["gpu:0/link:0", "gpu:0/link:1", "gpu:2/link:0", "gpu:2/link:3"])
        == "gpu:0/link:0-1, gpu:2/link:0, gpu:2/link:3"
    )
    long = ", ".join(f"gpu:{n}" for n in range(0, 64, 2))
    row = next(
        part
        for part in report({"reads n/a here": [(long, "why")]})
        if isinstance(part, Line) and part.label
    )
    assert row.column <= MAX_LABEL_LENGTH + 2
