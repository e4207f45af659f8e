"""What torch's error of memory says, and what the memory model makes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuconsole.diagnosis.models.out_of_memory import completed, headline, need
from gpuconsole.model.memory import Fit, MemoryFailure
from gpuconsole.report.parts import printed
from gpuconsole.report.run.memory import failure_report

GIB = 2.0**30
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 22.00 GiB of"
    " which 512.00 MiB is free. Process 4711 has 5.00 GiB memory in use. Including non-PyTorch"
    " memory, this process has 16.50 GiB memory in use. Of the allocated memory 15.00 GiB is"
    " allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. If reserved but"
    " unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to"
    " avoid fragmentation."
)
"""As torch 2.6 writes it (c10/cuda/CUDACachingAllocator.cpp)."""
FAILURE = MemoryFailure(
    MESSAGE,
    file="/home/me/train.py",
    line=41,
    function="step",
    device="cuda:1",
    phase="forward",
    steps=10,
    batch_size=64,
    step_peak_bytes=7 * GIB,
    step_batch=32,
    total_bytes=22 * GIB,
    parameters_bytes=GIB,
    trained_bytes=GIB,
    trained=2**28,
    optimizer_bytes=2 * GIB,
    optimizer="AdamW",
    moments=2,
    blocks=24,
)


def by_change(failure: MemoryFailure) -> dict[str, Fit]:
    return {fit.change: fit for fit in failure.fits}


def test_the_message_gives_what_was_asked_for_and_who_holds_the_card() -> None:
    failure = completed(FAILURE)
    assert (failure.asked_bytes, failure.free_bytes) == (2 * GIB, GIB / 2)
    assert (failure.allocated_bytes, failure.unallocated_bytes) == (15 * GIB, GIB)
    assert (failure.context_bytes, failure.processes) == (GIB / 2, {4711: 5 * GIB})
    assert failure.limit_bytes == 16.5 * GIB, "the card without the context and the other process"
    assert failure.activations_bytes == 12 * GIB
    assert headline(failure) == (
        "out of memory on cuda:1 at train.py:41 step, in the forward pass: 2.00 GiB asked for,"
        " 512 MiB free"
    )
    text = printed(failure_report(failure))
    assert "other processes                     5.00 GiB  23 %" in text
    assert (
        "end other processes on the card, or use another card: process 4711 holds 5.00 GiB;"
        " frees 5.00 GiB"
    ) in text


def test_the_largest_batch_follows_from_the_activations_of_a_finished_step() -> None:
    """32 samples need 7 - 1 - 2 = 4 GiB, so 64 need 8; of 95 % of 16.5 GiB, 12.675 are left for
    them: they fit, and 128 do not."""
    assert "batch" not in " ".join(by_change(completed(FAILURE)))
    failure = completed(replace(FAILURE, batch_size=128))
    fit = by_change(failure)["batch size 101, not 128, or 2 accumulated batches of 64"]
    assert fit.enough and fit.frees_bytes == pytest.approx((16 - 12.675) * GIB)


def test_before_a_finished_step_the_batch_is_an_upper_bound_and_says_so() -> None:
    failure = completed(replace(FAILURE, steps=0, step_peak_bytes=0.0, optimizer_bytes=0.0))
    wanted = need(failure)
    assert wanted is not None and not wanted.whole and wanted.activations == (15 - 1 + 2) * GIB
    (change, fit), *_ = [
        item for item in by_change(failure).items() if item[0].startswith("batch size")
    ]
    assert change.startswith("batch size at most 50, not 64")
    assert fit.enough is None and "more than 256 MiB for each sample" in fit.reason


def test_a_request_below_the_free_reserved_memory_is_fragmentation() -> None:
    message = MESSAGE.replace("Tried to allocate 2.00 GiB", "Tried to allocate 900.00 MiB")
    (fit,) = completed(replace(FAILURE, message=message)).fits
    assert fit.change == "PYTORCH_ALLOC_CONF=expandable_segments:True" and fit.enough
    other = completed(replace(FAILURE, message=message, settings="expandable_segments:True"))
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" not in by_change(other), "it is on already"


def test_states_that_do_not_fit_at_any_batch_are_named() -> None:
    failure = completed(
        replace(
            FAILURE,
            phase="optimizer",
            steps=0,
            step_peak_bytes=0.0,
            pass_peak_bytes=5 * GIB,
            parameters_bytes=4 * GIB,
            trained_bytes=4 * GIB,
            trained=2**30,
            gradients_bytes=4 * GIB,
            foreach=True,
        )
    )
    fits = by_change(failure)
    assert fits["a smaller batch does not help"].enough is False
    assert fits["AdamW(..., fused=True)"].frees_bytes == 4 * GIB, (
        "down to parameters, gradients and states, at 16 GiB"
    )
    assert fits["AdamW(..., fused=True)"].enough is False, "16 of 16.5 GiB: tensors can have 95 %"
    assert fits["8-bit moments of the optimizer (torchao, bitsandbytes)"].enough


def test_an_evaluation_with_gradients_is_named_and_the_batch_of_training_is_not() -> None:
    failure = completed(replace(FAILURE, evaluates=True))
    assert next(iter(by_change(failure))) == "evaluate within torch.no_grad()"
    assert not any("batch" in change or "moments" in change for change in by_change(failure))


def test_without_figures_in_the_message_nothing_is_claimed() -> None:
    failure = completed(
        MemoryFailure("CUDA error: out of memory", device="cuda:0", phase="backward")
    )
    assert failure.fits == [] and failure.limit_bytes is None
    assert "n/a: the error does not say how much memory is used" in printed(failure_report(failure))
