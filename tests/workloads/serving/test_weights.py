"""The embedded server's weights: trained ones know the text, int8 ones are nearly the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from gpuconsole.workloads.serving.engine import build, model
from gpuconsole.workloads.serving.load.quality import fixed_text
from gpuconsole.workloads.training.gpt import GPT


@torch.inference_mode()
def perplexity(gpt: GPT) -> float:
    losses = []
    for window in fixed_text():
        tokens = torch.tensor([list(window.encode())])
        losses.append(torch.nn.functional.cross_entropy(gpt(tokens)[0, :-1], tokens[0, 1:]))
    return math.exp(sum(losses) / len(losses))


def test_trained_weights_know_the_text_and_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model, "TRAIN_S", 4.0)
    torch.manual_seed(0)
    said: list[str] = []
    trained = perplexity(model.trained_model(64, 1, said.append).eval())
    # four seconds on a busy machine are few steps
    assert trained < 0.8 * perplexity(GPT(64, 1, 256).eval())
    assert said and "of 4 s" in said[-1]
    said.clear()
    again = perplexity(model.trained_model(64, 1, said.append).eval())
    assert again == trained and not said, "from the cache"
    assert [path.name for path in (tmp_path / "gpuconsole" / "models").iterdir()] == [
        "gpt-bytes-64-1.pt"
    ]


def test_int8_weights_answer_nearly_alike() -> None:
    torch.manual_seed(0)
    gpt = GPT(128, 2, 256).eval()
    before = perplexity(gpt)
    assert perplexity(model.in_int8(gpt)) == pytest.approx(before, rel=0.02)


def test_int8_weights_of_a_gpu_answer_nearly_alike() -> None:
    torch.manual_seed(0)
    gpt = GPT(128, 2, 256).eval()
    before = perplexity(gpt)
    model.quantize(gpt)
    model.warm_up(gpt, torch.float32)
    assert {one.weight.dtype for one in gpt.modules() if isinstance(one, model.Int8Linear)} == {
        torch.int8
    }
    assert perplexity(gpt) == pytest.approx(before, rel=0.005)
    assert not any(isinstance(one, torch.nn.Linear) for one in gpt.modules())
    assert gpt.to(torch.bfloat16).blocks[0].up.weight.dtype == torch.int8, (
        "a change of precision leaves them"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_int8_product_of_one_row_is_that_of_many(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(256, 64).to(dtype)
    layer = model.Int8Linear(linear)
    x = torch.randn(3, 5, 256).to(dtype)
    many = layer(x)
    assert many.shape == (3, 5, 64)
    one = layer(x[1:2, 2:3])
    error = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(one[0, 0], many[1, 2], atol=error, rtol=error)
    largest = (linear.weight - layer.weight.to(dtype) * layer.scale[:, None]).abs().amax(
        1
    ).float() / layer.scale.float()
    assert largest.max() < (2.0 if dtype == torch.bfloat16 else 0.51), (
        "a weight is wrong by half a step of its row"
    )


def test_a_gpu_without_triton_has_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.utils._triton

    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: False)
    layer = model.Int8Linear(torch.nn.Linear(8, 8))
    layer.weight = torch.empty_like(layer.weight, device="meta")
    monkeypatch.setattr(
        torch.Tensor, "is_cuda", property(lambda tensor: tensor.is_meta), raising=False
    )
    with pytest.raises(ValueError, match=r"needs torch\.compile, and this torch has no Triton"):
        model.warm_up(layer, torch.float32)


def test_a_model_is_made_in_its_own_precision() -> None:
    made: list[torch.dtype] = []
    hook = torch.nn.modules.module.register_module_parameter_registration_hook(
        lambda module, name, value: made.append(value.dtype)
    )
    try:
        knobs = {"d_model": 64, "n_layer": 1, "weights": "random"}
        gpt = build.make_model(knobs, 128, torch.device("cpu"), torch.bfloat16, lambda text: None)
    finally:
        hook.remove()
    assert set(made) == {torch.bfloat16}, "no weight ever was fp32"
    assert (
        next(gpt.parameters()).dtype == torch.bfloat16
        and torch.get_default_dtype() == torch.float32
    )
