"""Which passes count as passes of the training."""

from __future__ import annotations

import pytest
import torch

from gpuconsole.agent.hooks import passes
from gpuconsole.agent.hooks.recorder import StepRecorder, get_ident


def test_a_program_that_makes_models_all_the_time_leaves_short_lists_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, state = StepRecorder(), passes.State()
    recorder.thread = get_ident()
    monkeypatch.setattr(passes, "recorder", recorder)
    monkeypatch.setattr(passes, "state", state)
    models = [torch.nn.Linear(1, 1) for _ in range(2 * passes.MAX_TRAINED)]
    for model in models:
        assert passes.begin_pass(model, (), {})
        passes.end_pass(False)
    assert 0 < len(state.trained) <= passes.MAX_TRAINED and len(state.known) <= len(models)
    with torch.no_grad():
        assert passes.without_gradients(models[-1], (), {}) == passes.TRAINED
        assert passes.without_gradients(models[0], (), {}) == passes.NO_GRAD


def test_a_module_without_parameters_makes_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "state", passes.State())
    assert not passes.begin_pass(torch.nn.CrossEntropyLoss(), (), {})
