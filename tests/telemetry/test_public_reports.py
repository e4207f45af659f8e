"""Public reports of GPU monitors, rebuilt on the fake driver. The table of what each of them showed
before and shows now stands in benchmarks/results/README.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from gpuconsole.model.snapshot import Environment
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import faults, gpu_states
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_view
from gpuconsole.wire.events import AnyEvent, Processes
from tests.cli.exporting import Exporter
from tests.conftest import Cli, Machine
from tests.telemetry.overview import IDLE, row_of, view_of
from tests.telemetry.sampling import SamplerChild
from tests.waiting import wait_until

OWN_PID = os.getpid()
BUSY = (f"gpu * process {OWN_PID} compute 60e9 90", "gpu * gpm 2 80")
GEFORCE = (
    "gpu 0 name NVIDIA GeForce RTX 4060 Laptop GPU",
    "gpu 0 gpm_support 0",
    "gpu 0 nvlinks 0",
    "gpu 0 memory_total_bytes 8.58e9",
    "gpu 0 memory_used_bytes 26e6",
)


class Report(NamedTuple):
    """`source`: the report. `state`, `reason`: of gpu:0. `shown`, `hidden`: what its row has, and
    what it has not."""

    source: str
    lines: tuple[str, ...]
    state: str
    reason: str | None = None
    shown: str = ""
    hidden: str = ""


REPORTS = (
    Report(
        "Datura-ai/lium-io 1140: a killed program leaves GPU-Util at 100 %",
        ("gpus 2", *IDLE, "gpu 0 utilization_pct 100"),
        "n/a",
        "GPU-Util 100 %, but no memory is used",
    ),
    Report(
        "NVIDIA/NVSentinel 890: PCIe runs with 8 of 16 lanes, without any error",
        ("gpus 2", *BUSY, "gpu 0 pcie_width_now 8", "gpu 0 pcie_gen_now 3"),
        "busy",
        shown="8 of 16 PCIe lanes",
    ),
    Report(
        "NVIDIA/NVSentinel 890, a board that gives all its GPUs 8 lanes",
        ("gpus 2", *BUSY, "gpu * pcie_width_now 8"),
        "busy",
        hidden="PCIe lanes",
    ),
    Report(
        "NVIDIA/NVSentinel 890, a slot that has 8 lanes beside one that has 16",
        ("gpus 2", *BUSY, "gpu 0 pcie_width 8", "gpu 0 pcie_width_now 8"),
        "busy",
        hidden="PCIe lanes",
    ),
    Report(
        "NVIDIA/NVSentinel 890, a single GPU with 4 lanes",
        ("gpus 1", *BUSY, "gpu 0 pcie_width_now 4"),
        "busy",
        shown="4 of 16 PCIe lanes",
    ),
    Report(
        "NVIDIA/dcgm-exporter 662: SM activity reads 0 at a GPU-Util of 99 %",
        ("gpus 2", *BUSY, "gpu * gpm 2 0", "gpu * utilization_pct 99"),
        "busy",
        shown="99 %",
    ),
    Report(
        "XuehaiPan/nvitop 86, Syllo/nvtop 79: a laptop has no power limit",
        (
            "gpus 1",
            *GEFORCE,
            "gpu 0 utilization_pct 0",
            "gpu 0 power_mw 2000",
            "gpu 0 error nvmlDeviceGetEnforcedPowerLimit 3",
            "gpu 0 error nvmlDeviceGetPowerManagementLimit 3",
        ),
        "free",
        shown="  2 W  ",
        hidden="/",  # checked in the cell of power alone
    ),
    Report(
        "NVIDIA/k8s-device-plugin 12, wencolani/CrossE 2: memory stays used without a process",
        (
            "gpus 2",
            *IDLE,
            "gpu 0 name Tesla P100-SXM2-16GB",
            "gpu 0 gpm_support 0",
            "gpu 0 memory_total_bytes 17.07e9",
            "gpu 0 memory_used_bytes 13.42e9",
        ),
        "n/a",
        "12.5 GiB used, no process seen",
    ),
)


@pytest.mark.parametrize("report", REPORTS, ids=[report.source for report in REPORTS])
def test_a_report_is_shown_as_it_is(
    report: Report, machine: Machine, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, environment = machine(*report.lines)
    told = json.loads(cli("devices", "--json", env=environment).stdout)["devices"][0]
    assert (told["state"], told["state_reason"]) == (report.state, report.reason)
    row = row_of(view_of(environment, monkeypatch), "gpu:0", 170)
    assert (report.reason or report.shown) in row, row
    cells = row[row.index(report.shown) :][: len(report.shown)] if report.hidden == "/" else row
    assert not report.hidden or report.hidden not in cells


@pytest.mark.parametrize("percent", [190, 2147483632])
def test_impossible_shares_of_a_process_are_unknown(machine: Machine, percent: int) -> None:
    """Syllo/nvtop 110, NVIDIA/DCGM 83: the driver reports shares far above 100 %. The process and
    its memory are known."""
    _, environment = machine("gpus 1", f"gpu 0 process {OWN_PID} compute 60e9 {percent}")
    with SamplerChild(environment) as child:
        (process,) = child.rounds().last(Processes).processes
    assert (process.pid, process.memory_bytes) == (OWN_PID, 60e9)
    assert process.sm_ratio is None


def test_energy_of_a_gpu_is_not_counted_again_for_its_slices(machine: Machine) -> None:
    """NVIDIA/dcgm-exporter 317: each MIG slice has the energy of the whole GPU, so that a sum over
    the series is too high."""
    slices = ("mig 1", *(f"mig_slice {n} 19e9 1e6" for n in (3, 4, 5, 6)))
    _, environment = machine("gpus 2", *IDLE, *(f"gpu 0 {line}" for line in slices))
    with Exporter(environment).ready() as exporter:
        for name in ("gpuconsole_gpu_energy_joules_total", "gpuconsole_gpu_power_watts"):
            assert exporter.values(name).keys() == {"gpu:0", "gpu:1"}
        assert len(exporter.values("gpuconsole_gpu_hbm_used_bytes")) == 6


# --- errors (XIDs) --------------------------------------------------------------------------------


def view_after(events: Iterable[AnyEvent]) -> View:
    state = SessionState()
    for event in events:
        state.apply(event)
    return make_view(
        state,
        now=state.now,
        environment=Environment(),
        device="gpu:0",
        probing="",
        recording=False,
        recording_to="",
        ended=False,
    )


def errors_of(view: View, gpu: str) -> list[str]:
    return [fault.words for fault in faults(view, gpu)]


def test_an_error_of_a_program_does_not_hide_one_of_the_hardware(machine: Machine) -> None:
    """NVIDIA/DCGM 235: XID 62 is not seen, because the driver raises XID 45 right after it."""
    script, environment = machine("gpus 2", *BUSY)
    with SamplerChild(environment) as child:
        child.rounds()
        for serial, code in enumerate((62, 45), 1):
            script.write("gpus 2", *BUSY, f"gpu 0 xid {code}", f"gpu 0 xid_serial {serial}")
            child.wait(
                lambda now, serial=serial: now.values("gpu:0").get("gpu.xid_errors") == serial,
                f"XID {code}",
            )
        view = view_after(child.events)
    assert errors_of(view, "gpu:0") == ["XID 62"]
    state = gpu_states(view, view.devices[:1])["gpu:0"]
    assert (state.kind, state.reason) == ("sick", "XID 62")


def test_the_same_error_twice_is_counted_twice(machine: Machine) -> None:
    """NVIDIA/dcgm-exporter 190: a second XID 31 changes nothing in the metric of the last error."""
    script, environment = machine("gpus 1")
    with SamplerChild(environment) as child:
        child.rounds()
        times: list[tuple[int, float]] = []
        for serial in (1, 2):
            script.write("gpus 1", "gpu 0 xid 31", f"gpu 0 xid_serial {serial}")
            child.wait(
                lambda now, serial=serial: (
                    now.values("gpu:0").get("gpu.xid_errors") == serial
                    and view_after(child.events).xids.get("gpu:0") not in (None, *times)
                ),
                f"error {serial}",
            )
            times.append(view_after(child.events).xids["gpu:0"])
    assert [code for code, _ in times] == [31, 31]
    assert times[0][1] < times[1][1], "the time is that of the newest"


def test_a_gpu_that_was_reset_is_not_sick_of_its_old_error(machine: Machine) -> None:
    """NVIDIA/DCGM 277: the last XID stays after the GPU has recovered."""
    script, environment = machine("gpus 2", *BUSY)
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 2", *BUSY, "gpu 0 xid 79", "gpu 0 xid_serial 1")
        child.wait(
            lambda _: errors_of(view_after(child.events), "gpu:0") == ["XID 79"], "the error"
        )
        script.write("gpus 2", *BUSY, "gpu 0 xid 79", "gpu 0 xid_serial 1", "gpu 0 lost 1")
        child.wait(lambda now: now.losses, "the loss")
    before = child.events
    script.write("gpus 2", *BUSY, "gpu 0 lost 1")
    with SamplerChild(environment) as child:
        child.rounds()
        assert errors_of(view_after(before + child.events), "gpu:0") == ["XID 79"], "still lost"
    script.write("gpus 2", *BUSY)
    with SamplerChild(environment) as child:
        child.rounds(2)
        view = view_after(before + child.events)
    assert gpu_states(view, view.devices[:1])["gpu:0"].kind == "busy"
    assert errors_of(view, "gpu:0") == []


def test_the_exporter_calls_a_gpu_sick_after_its_last_error_is_harmless(machine: Machine) -> None:
    """NVIDIA/DCGM 235, as Prometheus sees it."""
    script, environment = machine("gpus 2", *BUSY)
    with Exporter(environment).ready() as exporter:
        for serial, code in enumerate((62, 45), 1):
            script.write("gpus 2", *BUSY, f"gpu 0 xid {code}", f"gpu 0 xid_serial {serial}")
            wait_until(
                lambda serial=serial: (
                    exporter.value("gpuconsole_gpu_xid_errors_total", "gpu:0") == serial
                ),
                what=f"XID {code}",
            )
        assert exporter.value("gpuconsole_gpu_state", "gpu:0", state="sick") == 1
