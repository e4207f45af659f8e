"""What comes first: the sampler imports little, and sends what one looks for before the rest."""

from __future__ import annotations

import subprocess
import sys

from gpuconsole.wire.events import Devices, Sample
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild

SM = "gpu.sm_active_ratio"
LOOKED_FOR = {
    "gpu.utilization_ratio",
    "gpu.hbm_used_bytes",
    "gpu.power_w",
    "gpu.temperature_c",
}


def imported_by(*command: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=True
    )
    lines = (line for line in ended.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


def test_the_sampler_imports_no_message_of_a_run() -> None:
    imported = imported_by("-m", "gpuconsole.telemetry.sampler", "--help")
    assert {"gpuconsole.wire.readings", "pynvml", "psutil"} <= imported
    needless = {
        "gpuconsole.wire.events",
        "gpuconsole.agent.protocol",
        "gpuconsole.model.certificate",
        "gpuconsole.model.experiments",
        "gpuconsole.model.finding",
        "gpuconsole.model.snapshot",
        "gpuconsole.model.knobs.catalogue",
        "asyncio",
        "inspect",
        "ssl",
        "statistics",
    }
    assert not needless & imported


def test_the_console_loads_no_rule_before_a_run() -> None:
    program = "import gpuconsole.cli.console, gpuconsole.experiments.session, gpuconsole.tui.app"
    imported = imported_by("-c", program)
    assert "textual.app" in imported
    assert not [name for name in imported if name.startswith("gpuconsole.diagnosis.rules.")]


def test_the_first_figures_are_drawn_without_textual() -> None:
    imported = imported_by("-c", "import gpuconsole.tui.first")
    assert "gpuconsole.report.machine.overview" in imported
    assert not [name for name in imported if name.partition(".")[0] in ("textual", "rich")]


def test_what_one_looks_for_comes_before_the_rates(machine: Machine) -> None:
    """A rate needs two readings, and PCIe throughput is observed for 20 ms on each GPU."""
    _, environment = machine("gpus 3", "gpu * delay nvmlDeviceGetPcieThroughput 20")
    with SamplerChild(environment, 1.0, "--vital-first") as sampler:
        sampler.wait(lambda heard: SM in heard.values("gpu:2"))
        events = list(sampler.events)
    of_gpus = [each for each in events if isinstance(each, Sample) and each.device == "gpu:0"]
    assert of_gpus[0].values.keys() >= LOOKED_FOR
    assert SM not in of_gpus[0].values
    listed = next(n for n, each in enumerate(events) if isinstance(each, Devices))
    first = {
        each.device: n
        for n, each in reversed(list(enumerate(events)))
        if isinstance(each, Sample) and each.device.startswith("gpu:") and "/" not in each.device
    }
    rates = next(
        n for n, each in enumerate(events) if isinstance(each, Sample) and SM in each.values
    )
    assert listed < min(first.values())
    assert max(first.values()) < rates
    assert of_gpus[0].t < of_gpus[1].t
