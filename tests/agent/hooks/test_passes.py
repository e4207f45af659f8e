"""Which passes count as samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpuconsole.agent.hooks import passes
from gpuconsole.agent.hooks.recorder import FORWARD, GAP, OPTIMIZER, WHOLE, Recorder


@pytest.mark.parametrize("stack", [[GAP, OPTIMIZER, FORWARD], [GAP, OPTIMIZER, WHOLE, FORWARD]], ids=["own loop", "library"])
@pytest.mark.parametrize(("again", "counts"), [(True, [True, True, False, False]), (False, [True] * 4)], ids=["L-BFGS", "Adam"])
def test_the_closure_of_lbfgs_counts_once(monkeypatch: pytest.MonkeyPatch, stack: list[int], again: bool, counts: list[bool]) -> None:
    """Two micro-batches with the first weights, and two with others. Adam evaluates its closure once, and a program may change weights within it."""
    recorder, state, versions = Recorder(), passes.State(), iter([1, 1, 2, 2])
    recorder.stack, state.evaluates_again = stack, again
    replaced: dict[str, Any] = {"recorder": recorder, "state": state, "weights_version": lambda: next(versions)}
    for name, value in replaced.items():
        monkeypatch.setattr(passes, name, value)
    assert [not passes.repeats_closure() for _ in counts] == counts


def test_a_program_that_makes_models_all_the_time_leaves_a_short_list_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, state = Recorder(), passes.State()
    recorder.thread = passes.get_ident()
    monkeypatch.setattr(passes, "recorder", recorder)
    monkeypatch.setattr(passes, "state", state)
    models = [torch.nn.Identity() for _ in range(2 * passes.MOST_TRAINED)]
    for model in models:
        assert passes.begin_pass(model, (), {})
        passes.end_pass()
    assert 0 < len(state.trained) <= passes.MOST_TRAINED
    with torch.no_grad():
        assert passes.without_gradients(models[-1], (), {}) == passes.TRAINED
        assert passes.without_gradients(models[0], (), {}) == passes.NO_GRAD
