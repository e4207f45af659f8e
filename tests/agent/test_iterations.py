"""The agent counts the steps of programs whose steps are hard to see: a step is an iteration of the loop that calls the optimizers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.agent.listener import Listener, Watched

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("loops that are hard to count")]

PROGRAM = Path(__file__).parent / "programs" / "optimizers.py"
STEPS = 40
LOOPS = (
    "even_and_odd", "one_call_for_both", "every_five", "two_conditions", "continued", "second_takes_over", "second_joins_later", "two_loops",
    "epochs_in_turn", "critic_first", "critic_last", "every_fifth", "actor_and_critic", "one_loss", "ensemble", "meta_learning", "step_fails",
    "left_out_by_a_scaler", "left_out_at_first", "in_a_thread", "without_passes",
    "by_data", "by_own_class", "by_tensors", "after_looks_at_gradients", "then_an_optimizer", "gradients_before_the_optimizer", "few_gradients_before_the_optimizer",
    "folds", "folds_that_end", "frozen_later", "many_micro_batches", "sparse_gradients", "cast_after_a_pass", "by_data_only", "inputs_first",
    "fails_first", "gradients_between",
)  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], dict[str, Watched]]:
    """The iterations that each loop counted, and what the agent sent."""
    listener = Listener(tmp_path_factory.mktemp("optimizers"))
    done = listener.run(sys.executable, str(PROGRAM), str(STEPS), *LOOPS)
    assert (done.returncode, done.stderr) == (0, "")
    counts = dict(line.split() for line in done.stdout.splitlines())
    return {name: int(count) for name, count in counts.items()}, listener.by_script()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_step_is_an_iteration_of_the_loop_around_the_optimizers(ran: tuple[dict[str, int], dict[str, Watched]], loop: str) -> None:
    counts, watched = ran
    assert watched[loop].off is None
    assert [step.index for step in watched[loop].steps] == list(range(counts[loop]))


def test_no_step_holds_the_passes_of_a_long_time_without_updates(ran: tuple[dict[str, int], dict[str, Watched]]) -> None:
    assert max(step.samples for step in ran[1]["gradients_between"].steps) < 100 * 8


@pytest.mark.parametrize("loop", ["gradients_before_the_optimizer", "few_gradients_before_the_optimizer"])
def test_the_first_step_of_an_optimizer_holds_no_passes_that_train_nothing(
    ran: tuple[dict[str, int], dict[str, Watched]], loop: str
) -> None:
    assert ran[1][loop].steps[0].samples <= 8
