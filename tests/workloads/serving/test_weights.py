"""The embedded server's weights: trained ones know the text, int8 ones are nearly the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from gpuconsole.workloads.serving.engine import weights
from gpuconsole.workloads.serving.load.quality import fixed_text
from gpuconsole.workloads.training.gpt import GPT


@torch.inference_mode()
def perplexity(model: GPT) -> float:
    losses = []
    for window in fixed_text():
        tokens = torch.tensor([list(window.encode())])
        losses.append(torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]))
    return math.exp(sum(losses) / len(losses))


def test_trained_weights_know_the_text_and_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "TRAIN_S", 4.0)
    torch.manual_seed(0)
    said: list[str] = []
    trained = perplexity(weights.trained_model(64, 1, said.append).eval())
    assert trained < 0.5 * perplexity(GPT(64, 1, 256).eval()), "after four seconds already"
    assert said and "of 4 s" in said[-1]
    said.clear()
    again = perplexity(weights.trained_model(64, 1, said.append).eval())
    assert again == trained and not said, "from the cache"
    assert [path.name for path in (tmp_path / "gpuconsole" / "models").iterdir()] == ["gpt-bytes-64-1.pt"]


def test_int8_weights_answer_nearly_alike() -> None:
    torch.manual_seed(0)
    model = GPT(128, 2, 256).eval()
    before = perplexity(model)
    assert perplexity(weights.in_int8(model)) == pytest.approx(before, rel=0.02)
