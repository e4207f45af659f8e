"""What an error of torch's allocator says, and what would make room: the memory model applied to
the moment at which an allocation failed.

Activations are proportional to the batch; parameters, gradients and optimizer states are not. So
the activations of a finished step, divided by its batch, give the largest batch that fits. Before a
step is finished, what is allocated at the failure is the least that the step needs: the answer is
then "at most", and says so.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec.structs import replace

from gpuconsole.diagnosis.models.inputs import FP32, GptShape
from gpuconsole.diagnosis.models.memory import (
    BLOCK,
    States,
    block,
    optimizer_bytes,
    optimizer_working,
    weight_casts,
)
from gpuconsole.model import units
from gpuconsole.model.memory import Fit, MemoryFailure

_SIZE = r"([\d.]+) (bytes|B|KiB|MiB|GiB|TiB)"
_FACTORS = {"bytes": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOWED = re.compile(rf"{_SIZE} allowed")
_ALLOCATED = re.compile(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
"""The sentences of c10/cuda/CUDACachingAllocator.cpp (torch 2.2 to 2.13); sizes have two digits
after the point."""
EXPANDABLE = "expandable_segments:True"
ADAM = ("Adam", "AdamW", "NAdam", "RAdam")
"""Optimizers of which torchao or bitsandbytes have a form with 8-bit moments."""
FILLED = 0.95
"""The share of its limit that the allocator fills with tensors: the rest is in pieces too small for
the next tensor. On the simulated device, which follows torch's rules, the largest batch of a model
with 16 equal layers filled 96 % (tests/cuda/test_out_of_memory.py)."""
NEARLY = 1.05
"""A peak of so many times the temporary tensors of the update may be that of the update: it says
nothing about activations."""
WORDS = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    "eval": "in an evaluation",
    "move": "while a module went to the GPU",
    "checkpoint": "in a checkpoint",
    "logging": "while logging",
    "comm": "in a collective",
    "data_wait": "while a batch was made",
    "other": "outside of the passes",
}
"""What the program did, by `MemoryFailure.phase`."""


def completed(failure: MemoryFailure) -> MemoryFailure:
    """`failure` with what its message says, and with what would make room."""
    read = _with_message(failure)
    # without the change, the job has room
    return read if failure.change else replace(read, fits=fits(read))


def headline(failure: MemoryFailure) -> str:
    """`out of memory on cuda:0 at train.py:41 step, in the forward pass: 2.00 GiB asked for, 0.41
    GiB free`."""
    where = f" at {failure.place}" if failure.place else ""
    asked = (
        f": {units.size_bytes(failure.asked_bytes).strip()} asked for"
        if failure.asked_bytes is not None
        else ""
    )
    free = (
        f", {units.size_bytes(failure.free_bytes).strip()} free"
        if asked and failure.free_bytes is not None
        else ""
    )
    change = (
        f", in the first steps with gpuconsole's change {failure.change}" if failure.change else ""
    )
    return (
        f"out of memory on {failure.device or 'the GPU'}{where},"
        f" {WORDS.get(failure.phase, failure.phase)}{change}{asked}{free}"
    )


def _with_message(failure: MemoryFailure) -> MemoryFailure:
    """What the message says holds for the moment of the failure; the figures of the agent come from
    the moment at which it saw the error."""
    text = failure.message
    asked, total, free, own, allowed, allocated, unallocated = (
        _size(pattern.search(text))
        for pattern in (_ASKED, _TOTAL, _FREE, _OWN, _ALLOWED, _ALLOCATED, _UNALLOCATED)
    )
    processes = {
        int(match[1]): float(match[2]) * _FACTORS[match[3]] for match in _OTHER.finditer(text)
    }
    total = failure.total_bytes or total
    free = free if free is not None else failure.free_bytes
    allocated = allocated if allocated is not None else failure.allocated_bytes
    reserved = (
        allocated + unallocated
        if allocated is not None and unallocated is not None
        else failure.reserved_bytes
    )
    beside = (
        max(0.0, total - free - reserved)
        if total is not None and free is not None and reserved is not None
        else None
    )
    context = max(0.0, own - reserved) if own is not None and reserved is not None else None
    limit = total - beside if total is not None and beside is not None else None
    return replace(
        failure,
        asked_bytes=asked,
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        limit_bytes=min(limit, allowed) if limit is not None and allowed is not None else limit,
        context_bytes=min(context, beside)
        if context is not None and beside is not None
        else context,
        processes=processes,
    )


def _size(match: re.Match[str] | None) -> float | None:
    return float(match[1]) * _FACTORS[match[2]] if match is not None else None


def other_bytes(failure: MemoryFailure) -> float | None:
    """Used memory of the card that torch has not reserved in this process: context, libraries,
    other processes."""
    known = (failure.total_bytes, failure.free_bytes, failure.reserved_bytes)
    if None in known:
        return None
    total, free, reserved = (value or 0.0 for value in known)
    return max(0.0, total - free - reserved)


# --- what would make room -------------------------------------------------------------------------


class MemoryNeed(NamedTuple):
    """Bytes of a step by the memory model. `kept`: what exists during the passes beside
    activations: parameters, optimizer states, and gradients where the program does not free them
    before. `activations`: at the peak of the passes with `batch` samples (0: not known). `update`:
    at the update: parameters, gradients, optimizer states, and the temporary tensors of the update
    (`working`). `whole`: the passes came to their end, so the activations are all that they need;
    else they are the least."""

    kept: float
    activations: float
    update: float
    working: float
    batch: int
    whole: bool

    @property
    def total(self) -> float:
        """The peak of the step: the passes and the update follow one another."""
        return max(self.kept + self.activations, self.update)

    def without(
        self, states: float = 0.0, activations: float = 0.0, working: float = 0.0
    ) -> MemoryNeed:
        """The need without these bytes of optimizer states, activations and temporary tensors."""
        return self._replace(
            kept=self.kept - states,
            activations=self.activations - activations,
            update=self.update - states - working,
            working=self.working - working,
        )


def need(failure: MemoryFailure) -> MemoryNeed | None:
    """The need of the step that failed; None where the optimizer is not known."""
    optimizer = _optimizer_bytes(failure)
    if optimizer is None:
        return None
    states = States(failure.parameters_bytes, failure.trained_bytes, optimizer)
    working = optimizer_working(states, "adamw_foreach") if failure.foreach else 0.0
    gradients = (
        states.gradients
        if failure.phase == "forward" and failure.gradients_bytes > states.gradients / 2
        else 0.0
    )
    before = MemoryNeed(
        states.parameters + optimizer + gradients,
        0.0,
        states.total + working,
        working,
        failure.batch_size,
        False,
    )
    if (
        failure.step_peak_bytes
        and failure.step_batch
        and failure.step_peak_bytes > NEARLY * before.update
    ):
        batch = failure.batch_size or failure.step_batch
        activations = (failure.step_peak_bytes - before.kept) * batch / failure.step_batch
        return before._replace(activations=activations, batch=batch, whole=True)
    # the passes have succeeded; before the first update there were no optimizer states
    if failure.phase == "optimizer":
        first = failure.pass_peak_bytes if not failure.steps else 0.0
        return before._replace(activations=max(0.0, first - states.parameters), whole=bool(first))
    held = failure.parameters_bytes + failure.optimizer_bytes + gradients
    return before._replace(
        activations=max(0.0, (failure.allocated_bytes or 0.0) - held) + (failure.asked_bytes or 0.0)
    )


def _optimizer_bytes(failure: MemoryFailure) -> float | None:
    """Optimizer states once they all exist: those that exist after a step, else by the settings of
    the optimizer."""
    if failure.steps and failure.optimizer_bytes:
        return failure.optimizer_bytes
    if failure.moments >= 0 and failure.optimizer:
        return max(failure.optimizer_bytes, failure.moments * failure.trained_bytes)
    return failure.optimizer_bytes or None


def fits(failure: MemoryFailure) -> list[Fit]:
    """What would make room, what the failure points to first. Empty where the figures are not
    known."""
    limit = failure.limit_bytes
    if limit is None:
        return []
    wanted, pieces = need(failure), _expandable(failure)
    if pieces is not None and wanted is not None and wanted.whole and wanted.total <= limit:
        return [replace(pieces, enough=True)]  # the step fits: only the pieces are too small
    first = [_no_grad(failure), pieces, _others(failure)]
    trains = wanted is not None and not failure.evaluates and failure.phase not in ("eval", "move")
    training = (
        [fit for fit in _training(failure, wanted, FILLED * limit) if fit is not None]
        if trains and wanted is not None
        else []
    )
    training.sort(key=lambda fit: (fit.enough is False, fit.enough is None))
    return [*(fit for fit in first if fit is not None), *training]


def _no_grad(failure: MemoryFailure) -> Fit | None:
    """A model in evaluation mode whose passes keep tensors for a backward pass that never comes."""
    if not failure.evaluates or failure.phase not in ("forward", "other"):
        return None
    reason = (
        "the model is in evaluation mode and gradients are on: each pass keeps its activations, and"
        " no backward pass frees them"
    )
    return Fit("evaluate within torch.no_grad()", reason, failure.activations_bytes)


def _expandable(failure: MemoryFailure) -> Fit | None:
    """Fragmentation: what is asked for would fit into what torch has reserved and no tensor
    uses."""
    unallocated, asked = failure.unallocated_bytes, failure.asked_bytes
    if (
        unallocated is None
        or asked is None
        or unallocated < asked
        or EXPANDABLE in failure.settings
    ):
        return None
    reason = (
        f"fragmentation: {_text(unallocated)} are reserved and free, but no free piece has"
        f" {_text(asked)}"
    )
    return Fit(f"PYTORCH_ALLOC_CONF={EXPANDABLE}", reason, unallocated)


def _others(failure: MemoryFailure) -> Fit | None:
    """Other processes hold the memory."""
    held, missing = sum(failure.processes.values()), _missing(failure)
    if not failure.processes or missing is None or held < missing:
        return None
    names = ", ".join(
        f"process {pid} holds {_text(size)}"
        for pid, size in sorted(failure.processes.items(), key=lambda item: -item[1])[:3]
    )
    return Fit("end other processes on the card, or use another card", names, held)


def _missing(failure: MemoryFailure) -> float | None:
    """Bytes that were missing for the allocation that failed."""
    if failure.asked_bytes is None or failure.free_bytes is None:
        return None
    return max(0.0, failure.asked_bytes - failure.free_bytes)


def _training(failure: MemoryFailure, wanted: MemoryNeed, limit: float) -> list[Fit | None]:
    """The batch, checkpointing, the form of the update, and the states of the optimizer. `limit`:
    bytes that tensors can have."""

    def fit(change: str, reason: str, then: MemoryNeed) -> Fit | None:
        """A change after which the step needs `then`; none where that is not less."""
        enough = False if then.total > limit else True if wanted.whole else None
        return (
            Fit(change, reason, wanted.total - then.total, enough)
            if then.total < wanted.total
            else None
        )

    answers = [_batch(wanted, limit)]
    if failure.blocks and wanted.activations:
        share = min(
            1.0, kept_by_checkpointing(failure.blocks, failure.autocast in ("bf16", "fp16"))
        )
        kept = (
            f"by the model of a GPT it keeps about {units.percent(share).strip()} of the"
            " activations; the forward pass runs twice"
        )
        then = wanted.without(activations=wanted.activations * (1 - share))
        answers.append(
            fit(
                "activation checkpointing of each layer",
                f"{failure.blocks} equal layers: {kept}",
                then,
            )
        )
    names = failure.optimizer.split(", ")
    if wanted.working:
        reason = f"without it the update has {_text(wanted.working)} of temporary tensors"
        answers.append(
            fit(f"{names[0]}(..., fused=True)", reason, wanted.without(working=wanted.working))
        )
    if failure.moments >= 2 and failure.trained and all(name in ADAM for name in names):
        present = failure.moments * failure.trained_bytes
        for change, kept_bytes in (
            ("bf16 moments of the optimizer", failure.moments * 2.0 * failure.trained),
            (
                "8-bit moments of the optimizer (torchao, bitsandbytes)",
                optimizer_bytes(failure.trained // BLOCK * BLOCK, "adamw_8bit"),
            ),
        ):
            reason = f"{failure.optimizer} keeps {_text(present)} now, {_text(kept_bytes)} then"
            answers.append(fit(change, reason, wanted.without(states=present - kept_bytes)))
    return answers


def _batch(wanted: MemoryNeed, limit: float) -> Fit | None:
    """The largest batch whose activations fit beside what is kept."""
    if wanted.update > limit:
        temporary = ", and the temporary tensors of the update," if wanted.working else ""
        reason = (
            f"parameters, gradients and optimizer states{temporary} need {_text(wanted.update)},"
            f" and tensors can have {_text(limit)}"
        )
        return Fit("a smaller batch does not help", reason, None, False)
    room = limit - wanted.kept
    if wanted.activations <= room:
        return None
    share = room / wanted.activations
    least, more = ("", "") if wanted.whole else ("at most ", "more than ")
    freed, enough = wanted.activations - room, True if wanted.whole else None
    if not wanted.batch:
        reason = (
            f"activations need {more}{_text(wanted.activations)}, and {_text(room)} are left; the"
            " batch of the program is not known"
        )
        return Fit(f"{least}{units.percent(share).strip()} of the batch", reason, freed, enough)
    size = int(wanted.batch * share)
    reason = (
        f"activations need {more}{_text(wanted.activations / wanted.batch)} for each sample, and"
        f" {_text(room)} are left for them"
    )
    if not size:
        return Fit("a smaller batch does not help", reason, None, False)
    parts = next(
        (
            parts
            for parts in range(2, wanted.batch + 1)
            if wanted.batch % parts == 0 and wanted.batch // parts <= size
        ),
        1,
    )
    accumulated = (
        f", or {parts} accumulated batches of {wanted.batch // parts}" if parts > 1 else ""
    )
    return Fit(f"batch size {least}{size}, not {wanted.batch}{accumulated}", reason, freed, enough)


def kept_by_checkpointing(blocks: int, narrow: bool) -> float:
    """The share of activations that checkpointing of each block keeps, by the memory model of a
    GPT: the inputs of the blocks, and one block that is recomputed. Tensors outside of the blocks,
    such as logits, do not shrink."""
    shape = GptShape(batch=1, tokens=1024, targets=1024, d_model=1024, n_layer=blocks, vocabulary=1)
    whole = block(shape, narrow, "sdpa", True, 1, False) - (
        weight_casts(shape, 1, False) if narrow else 0
    )
    return shape.rows * shape.d_model * FP32 / whole + 1 / blocks


def _text(size: float) -> str:
    return units.size_bytes(size).strip()
