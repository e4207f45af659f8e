"""Probes in a user's job: what they measure, what they refuse, and that the losses after them are
the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuconsole.agent.hooks.evidence.probes import MAX_HOLD_S, WINDOW_STEPS, why_refused
from gpuconsole.agent.probes import factors_in_time
from gpuconsole.model.stacks import StackSample
from gpuconsole.session.places import signals_of
from gpuconsole.wire.events import Command, ProbeDone, Profile, Profiled, RunProbe
from gpuconsole.workloads.profiling.summary import summarize
from gpuconsole.workloads.profiling.trace import read_trace
from tests.agent.listener import Listener

# one process makes the outputs
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("a probed job")]

PROGRAM = Path(__file__).parents[2] / "programs" / "probed.py"
FIRST, SECOND = 900, 400
PROBES = (
    "cached_batch",
    "batch_elasticity",
    "swap_optim",
    "side_work_off",
    "script_lines",
    "swap_precision",
    "launch",
)
COUNTS = 8
PROFILED, OP_MIX, SYNC_GAPS = 9, 10, 11
Outputs = tuple[str, str, dict[int, ProbeDone], dict[int, Profiled], list[StackSample], float]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """The output of the program alone and with probes and the profiler, the answers by request,
    that about the profile, and the stack samples."""
    command = (sys.executable, str(PROGRAM), str(FIRST), str(SECOND))
    asks: list[tuple[int, Command]] = [
        (10, RunProbe(number, name)) for number, name in enumerate(PROBES, 1)
    ] + [(FIRST + 5, RunProbe(COUNTS, "cached_batch"))]
    asks += [
        (FIRST + 100, Profile(PROFILED, 2, "kept")),
        (FIRST + 110, RunProbe(OP_MIX, "op_mix")),
        (FIRST + 120, RunProbe(SYNC_GAPS, "sync_gaps")),
    ]
    listener = Listener(tmp_path_factory.mktemp("probed"), asks)
    probed = listener.run(*command)
    assert probed.returncode == 0, probed.stderr
    (one,) = listener.by_script().values()
    assert one.off is None
    assert [step.index for step in one.steps] == list(range(FIRST + SECOND))
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert probed.stderr == alone.stderr
    profiled = {event.request: event for event in one.events if isinstance(event, Profiled)}
    answers = {
        event.request: event
        for event in one.events
        if isinstance(event, ProbeDone) and event.request
    }
    return alone.stdout, probed.stdout, answers, profiled, one.samples, one.last.overhead_s


def test_losses_weights_and_random_state_after_probes_are_the_same_bits(outputs: Outputs) -> None:
    alone, probed, answers, *_ = outputs
    assert len(answers) == len(PROBES) + 2
    assert probed == alone


def test_passes_on_the_last_batch_and_updates_of_copies_are_timed(outputs: Outputs) -> None:
    answers = {event.probe: event for request, event in outputs[2].items() if request < COUNTS}
    assert answers["cached_batch"].error is None
    assert 0 < answers["cached_batch"].signals["probe.cached_pass_s"].value < 1
    found = answers["batch_elasticity"].signals
    assert found["probe.batch_factor"].value == 4
    assert 0.2 < found["probe.batch_cost_ratio"].value < 1.5
    assert answers["swap_optim"].signals["probe.optim_fused_step_s"].value > 0


@pytest.mark.parametrize(
    ("pass_s", "factors"), [(0.01, (1, 2, 4)), (0.08, (1, 2, 4)), (0.3, (1, 2))]
)
def test_a_program_with_long_passes_is_not_held_up_for_passes_at_four_times_its_batch(
    pass_s: float, factors: tuple[int, ...]
) -> None:
    assert factors_in_time(pass_s, MAX_HOLD_S) == factors


def test_the_agents_own_work_is_told_without_that_of_probes(outputs: Outputs) -> None:
    probes_s = sum(event.cost_s for event in outputs[2].values())
    assert outputs[5] < probes_s


@pytest.mark.rates
def test_stack_samples_name_the_line(outputs: Outputs) -> None:
    signals = signals_of(outputs[4])
    line = next(
        number
        for number, text in enumerate(PROGRAM.read_text().splitlines(), 1)
        if "time.sleep" in text
    )
    place = signals["stack.line_ratio"].place
    assert place is not None
    assert (place.line, place.function, place.part) == (f"probed.py:{line}", "train", "between")
    assert signals["stack.script_ratio"].value >= signals["stack.line_ratio"].value > 0.2
    assert signals["stack.line_cpu_ratio"].value < 0.4, "the line sleeps"


def test_side_work_is_never_left_out(outputs: Outputs) -> None:
    assert "never left out" in (outputs[2][1 + PROBES.index("side_work_off")].error or "")


def test_a_pass_in_another_way_is_refused_and_launches_on_a_cpu_too(outputs: Outputs) -> None:
    precision, launch = (
        outputs[2][1 + PROBES.index(name)] for name in ("swap_precision", "launch")
    )
    assert precision.error == why_refused("swap_precision") and not precision.signals
    assert launch.error == "no GPU: nothing is launched or copied to one"


def test_a_model_that_keeps_python_state_is_refused_with_the_attribute(outputs: Outputs) -> None:
    assert "keeps Python state that a pass changes (calls)" in (outputs[2][COUNTS].error or "")


@pytest.mark.rates
def test_the_profiler_writes_the_trace_of_some_steps_for_the_user_and_for_a_probe(
    outputs: Outputs,
) -> None:
    windows = outputs[3]
    of_user, of_probe = windows[PROFILED], windows[OP_MIX]
    assert (of_user.error, of_user.gpu, of_user.keep, of_user.probe) == (None, False, "kept", "")
    assert (of_probe.error, of_probe.gpu, of_probe.keep, of_probe.probe) == (
        None,
        False,
        "",
        "op_mix",
    )
    report = summarize(read_trace(Path(of_probe.trace)))
    assert report.steps == WINDOW_STEPS[1], "a step takes some 5 ms"
    assert summarize(read_trace(Path(of_user.trace))).steps == 2
    assert report.stalls is None
    assert {"gemm", "elementwise"} <= {one.name for one in report.pass_classes}
    assert "optimizer" not in {one.name for one in report.pass_classes}
    assert sum(one.share_ratio for one in report.pass_classes) == pytest.approx(1.0)


def test_gaps_of_a_gpu_are_not_looked_for_on_a_cpu(outputs: Outputs) -> None:
    assert outputs[2][SYNC_GAPS].error == "no GPU: nothing is launched or copied to one"
