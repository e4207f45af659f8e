"""The agent counts the steps of programs whose steps are hard to see: several optimizers, closures,
steps that fail or are left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.agent.listener import Listener, Watched

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("loops that are hard to count")]

PROGRAM = Path(__file__).parent / "programs" / "optimizers.py"
STEPS = 40
STEPS_OF_AN_ITERATION = {
    "second_takes_over": 39 / 40, "two_loops": 1, "critic_first": 5, "critic_last": 3,
    "every_fifth": 1, "actor_and_critic": 1, "ensemble": 1, "even_and_odd": 0.5, "step_fails": 1,
    "left_out_by_a_scaler": 1, "left_out_at_first": 1, "in_a_thread": 1, "without_passes": 1,
    "lbfgs": 1, "accumulates": 1, "in_backward": 1,
}  # fmt: skip
"""By loop. A critic that steps five times before its generator makes five steps; two models that
are trained in turn, one in each iteration, share a step. A second model that takes over has its
first step together with the last of the first."""
LOOPS = tuple(STEPS_OF_AN_ITERATION)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], dict[str, Watched]]:
    """The iterations that each loop counted, and what the agent sent."""
    listener = Listener(tmp_path_factory.mktemp("optimizers"))
    done = listener.run(sys.executable, str(PROGRAM), str(STEPS), *LOOPS)
    assert (done.returncode, done.stderr) == (0, "")
    counts = dict(line.split() for line in done.stdout.splitlines())
    return {name: int(count) for name, count in counts.items()}, listener.by_script()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_step_ends_where_an_optimizer_steps_again(
    ran: tuple[dict[str, int], dict[str, Watched]], loop: str
) -> None:
    counts, watched = ran
    assert watched[loop].off is None
    assert [step.index for step in watched[loop].steps] == list(
        range(int(counts[loop] * STEPS_OF_AN_ITERATION[loop]))
    )
