"""The activation model against what autograd really saves."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.models.inputs import HEAD_SIZE, VOCABULARY, GptShape
from gpuconsole.diagnosis.models.memory import activations
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.probes import memory
from tests.diagnosis.models.gpt import Case, batch_of, build, cases, forward


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_saved_bytes_are_those_of_the_real_graph(case: Case) -> None:
    model, batch = build(case), batch_of(case.shape)
    _, measured = memory.saved_bytes(
        forward(model, batch, case.precision), [*batch, *model.parameters()]
    )
    predicted = activations(case.shape, case.precision, case.attention, case.checkpointing)
    assert predicted.saved == measured


def test_constants_are_the_workloads() -> None:
    assert (HEAD_SIZE, VOCABULARY) == (gpt.HEAD_SIZE, gpt.VOCABULARY)


@pytest.mark.parametrize(
    ("tokens", "batch", "attention", "precision", "checkpointing", "mib"),
    [
        (256, 4, "sdpa", "fp32", False, 99.3),
        (256, 4, "sdpa", "bf16", False, 65.9),
        (256, 4, "sdpa", "fp32", True, 9.0),
        (2048, 1, "sdpa", "fp32", False, 198.6),
    ],
)
def test_figures_that_were_measured_on_a_gpt_of_d_256_and_6_blocks(
    tokens: int, batch: int, attention: str, precision: str, checkpointing: bool, mib: float
) -> None:
    """That model had 8 heads to our 4: a little more log-sum-exp."""
    shape = GptShape(batch, tokens, tokens, 256, 6, 256)
    assert activations(shape, precision, attention, checkpointing).saved / 2**20 == pytest.approx(
        mib, rel=0.01
    )


def test_what_is_computed_again_is_one_block() -> None:
    shape = GptShape(2, 64, 64, 128, 4, 256)
    kept, again = activations(shape, "fp32"), activations(shape, "fp32", checkpointing=True)
    assert again.recomputed == kept.blocks[1]
    assert again.saved < kept.saved / 4


def test_tensor_parallelism_splits_what_lies_between_the_matrices() -> None:
    shape = GptShape(2, 64, 64, 256, 2, 256)
    whole, half = (
        activations(shape, "fp32", tensor_parallel=processes).blocks[0] for processes in (1, 2)
    )
    assert whole / 2 < half < whole


def test_cuda_computes_softmax_in_fp32() -> None:
    shape = GptShape(2, 64, 64, 128, 1, 256)
    scores = 2 * 2 * 64**2
    cpu, gpu = (activations(shape, "bf16", "math", is_gpu=is_gpu).saved for is_gpu in (False, True))
    assert gpu - cpu == 4 * scores
