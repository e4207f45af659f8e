"""The programs of public reports under the agent: each has work of the passes whose result nobody
needs, and with `--fixed` it has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuconsole.agent.protocol import Signal
from gpuconsole.wire.events import ProbeDone
from tests.agent.listener import Listener, Watched

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "own_job" / "reports" / "programs"
SPARE = {
    "second_pass": "spare.same_pass_ratio",
    "pass_thrown_away": "spare.same_pass_ratio",
    "undetached_fake": "spare.unused_gradients_ratio",
    "frozen_by_optimizer": "spare.unused_gradients_ratio",
    "losses_apart": "spare.backward_again_ratio",
    "one_hot_input": "spare.zeros_ratio",
    "unlabelled_logits": "spare.unlabelled_ratio",
    "padded_to_most": "spare.padding_ratio",
    "jacobian_rows": "gradient_loop.operators_ratio",
    "hessian_rows": "gradient_loop.operators_ratio",
}
SMALL = 0.1
"""The threshold of the rule. A batch that is padded to its longest row has some padding."""
PADDED = 0.4


def watched(folder: Path, name: str, *arguments: str) -> Watched:
    """Run a program for some steps under the agent."""
    listener = Listener(folder)
    done = listener.run(
        sys.executable,
        str(PROGRAMS / f"{name}.py"),
        *arguments,
        environment={"SECONDS": "2.5", "WARM_S": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    (ran,) = listener.by_script().values()
    assert ran.off is None
    return ran


def observed(ran: Watched) -> dict[str, Signal]:
    """Return what the agent has observed."""
    return {
        signal: value
        for event in ran.events
        if isinstance(event, ProbeDone) and event.probe == "observed"
        for signal, value in event.signals.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SPARE)
def test_spare_work_of_a_report_is_seen_with_its_line(name: str, tmp_path: Path) -> None:
    signals = observed(watched(tmp_path, name))
    found = signals[SPARE[name]]
    assert found.value >= SMALL
    file, _, line = str(found.place.line if found.place is not None else "").partition(":")
    source = (PROGRAMS / f"{name}.py").read_text().splitlines()
    assert file == f"{name}.py" and "# slow" in source[int(line) - 1]
    others = {signal for signal in signals if signal.startswith("spare.")} - {SPARE[name]}
    assert all(signals[signal].value < SMALL for signal in others)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPARE)
def test_the_same_program_without_the_fault_is_left_alone(name: str, tmp_path: Path) -> None:
    signals = observed(watched(tmp_path, name, "--fixed"))
    assert "recomputed.flops_ratio" in signals, "a step was counted"
    least = PADDED if name == "padded_to_most" else SMALL
    for signal in SPARE.values():
        assert signal not in signals or signals[signal].value < least


@pytest.mark.slow
def test_a_pass_at_the_begin_of_a_marked_step_is_seen(tmp_path: Path) -> None:
    """After a step that is only counted, a pass before `zero_grad` was a wait for data."""
    shares = watched(tmp_path, "pass_thrown_away").shares(40)
    assert shares["data_wait"] < 0.1 and shares["forward"] > 0.4
