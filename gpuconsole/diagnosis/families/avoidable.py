"""Work of the passes and of the update that could be left out, and how much of a step it takes."""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.diagnosis.families import device, passes
from gpuconsole.diagnosis.rule import (
    Case,
    CodePlace,
    Confidence,
    Evidence,
    Threshold,
    percent,
)

UPDATE = Threshold(
    "update",
    0.10,
    "ratio",
    "a fused update, or one that works on lists of tensors, spends its time in torch",
)
PYTHON = Threshold(
    "python",
    0.2,
    "ratio",
    "an update that works on lists of tensors spends a tenth of its time in Python",
)
EACH = Threshold(
    "each_tensor",
    300e-6,
    "s",
    "the time of 20 short operators; an update that multiplies matrices takes longer per tensor",
)
MANY = Threshold("tensors", 20, "", "with few tensors, Python takes little time")
HEAVY = Threshold(
    "own_update",
    0.4,
    "ratio",
    "with a small model, an optimizer of torch takes 10 % to 33 % of a step",
)
COSTLY = Threshold(
    "costly", 100e-6, "s", "the time of ten to twenty short operators for each tensor"
)
GROUPS = Threshold(
    "groups", 20, "", "different rates and decays need some groups, not one for each tensor"
)
GROUPED = Threshold(
    "tensors_per_group", 2.0, "", "an optimizer works on all tensors of a group in one call"
)
BY_GROUPS = 0.7
"""The share of the update's time that fewer groups save. Measured: 0.8 (a fused AdamW with 482
tensors on a CPU; benchmarks/own_job/reports/programs/param_groups.py)."""
ON_LISTS = 0.4
"""The share of the update's time that operators on lists of tensors save on a CPU. Measured: 0.31
to 0.64 (an optimizer and gradient clipping, with 240 and 600 small tensors)."""
CALLS = Threshold("calls", 4, "", "a siamese network makes two calls, a triplet loss three")
REPEATED = Threshold(
    "repeated", 0.3, "ratio", "below 30 % of the operators, the calls are not the main work"
)
SHORT = Threshold(
    "operator",
    25e-6,
    "s",
    "torch takes 3 to 8 µs to start an operator: longer ones gain little from a larger batch",
)
BY_ROWS = 0.45
"""The share of its time that a loop over the rows of a Jacobian saves in one batched call, whose
operators take longer to start. Measured: 0.43 with 24 rows, and 0.78 with 9 rows of a Hessian, in
CPU time (benchmarks/own_job/reports/programs/jacobian_rows.py and hessian_rows.py)."""
START_S = 6e-6
"""The seconds that torch takes to start an operator and its backward operator."""
DECOMPOSED = Threshold(
    "decomposed",
    0.03,
    "ratio",
    "a decomposition reaches a tenth of the FLOP/s of a product of matrices, or less",
)
OPERATOR = Threshold(
    "operator_share", 0.15, "ratio", "below 15 % of a step, a faster operator gains little"
)
SPARED = Threshold(
    "spare",
    0.10,
    "ratio",
    "below a tenth of the FLOPs, a change gains little; checkpoints in all layers repeat a quarter",
)
ROOM = Threshold(
    "memory_used", 0.5, "ratio", "memory is not short while less than half of it is in use"
)


class Avoidable(NamedTuple):
    """Work that could be left out. `share`: its share of a step. `saves`: the share of a step that
    a change saves."""

    title: str
    share: float
    saves: float
    level: float
    confidence: Confidence
    summary: str
    evidence: tuple[Evidence, ...]
    place: CodePlace | None = None


def words(place: CodePlace | None) -> str:
    """Return where the work is, in words that leave room for the advice in one row."""
    if place is None:
        return "one function"
    return f"{place.function} at {place.line}" if place.function else place.line


def update(case: Case) -> Avoidable | None:
    """Find an optimizer, or gradient clipping, that runs short operators for each tensor in
    turn."""
    share, place = case.get("stack.update_ratio", 0.0), case.place("stack.update_ratio")
    python = case.get("stack.update_python_ratio", 0.0)
    if share < UPDATE or python < PYTHON:
        return None
    tensors = case.get("model.trained_tensors", 0.0)
    if tensors < MANY or (each_s := share * case.value("step_s") / tensors) > EACH:
        return None
    is_optimizer = place is not None and place.part == "optimizer"
    norm = "" if is_optimizer else "torch.nn.utils.clip_grad_norm_ or "
    summary = (
        f"{percent(share)} of each step is in {words(place)}. Let {norm}torch._foreach_* functions"
        f" take all {tensors:.0f} tensors in one call. The program runs Python and short operators"
        f" for one tensor after the other, {1e6 * each_s:.0f} µs each"
    )
    return Avoidable(
        "An optimizer in Python slows every step"
        if is_optimizer
        else "Gradients are handled one tensor at a time",
        share,
        share * ON_LISTS,
        share / UPDATE,
        "medium",
        summary,
        case.evidence(
            ("stack.update_ratio", UPDATE),
            ("stack.update_python_ratio", PYTHON),
            ("model.trained_tensors", MANY),
            "step_s",
        ),
        place,
    )


def heavy_update(case: Case) -> Avoidable | None:
    """Find an optimizer of the program's own whose operators, not their number, take much of a
    step."""
    share, place = case.get("stack.update_ratio", 0.0), case.place("stack.update_ratio")
    if share < HEAVY or place is None or place.part != "optimizer":
        return None
    tensors = case.get("model.trained_tensors", 0.0)
    is_python = case.get("stack.update_python_ratio", 0.0) >= PYTHON
    if not tensors or (each_s := share * case.value("step_s") / tensors) < COSTLY:
        return None
    if tensors >= MANY and is_python and each_s <= EACH:
        return None  # see `update`
    summary = (
        f"{percent(share)} of each step is in {words(place)}, in the optimizer. If the method"
        " allows, do the costly part in some steps only (Shampoo takes its roots in each 10th to"
        " 100th step), or on smaller blocks"
    )
    return Avoidable(
        "The program's own optimizer takes much of every step",
        share,
        share,
        share / HEAVY,
        "low",
        summary,
        case.evidence(
            ("stack.update_ratio", HEAVY),
            "stack.update_python_ratio",
            "model.trained_tensors",
            "step_s",
        ),
        place,
    )


def grouped(case: Case) -> Avoidable | None:
    """Find an optimizer with about one group for each tensor."""
    groups, tensors = (case.get(f"model.{name}", 0.0) for name in _GROUPS)
    share = case.get("optimizer_ratio", 0.0)
    if groups < GROUPS or tensors >= GROUPED * groups or share < UPDATE:
        return None
    summary = (
        f"The optimizer has {groups:.0f} parameter groups for {tensors:.0f} tensors, and takes"
        f" {percent(share)} of each step. Put all tensors with the same settings into one group:"
        " the optimizer works on one group after the other"
    )
    return Avoidable(
        "The optimizer has a group for each tensor",
        share,
        share * BY_GROUPS,
        min(groups / GROUPS, share / UPDATE),
        "medium",
        summary,
        case.evidence(
            ("model.optimizer_groups", GROUPS),
            "model.trained_tensors",
            ("optimizer_ratio", UPDATE),
        )
        + case.if_known("stack.optimizer_ratio"),
        case.place("stack.optimizer_ratio"),
    )


_GROUPS = ("optimizer_groups", "trained_tensors")


class ManyCalls(NamedTuple):
    """Calls that could be one call for a batch. `name`: the begin of the names of their signals.
    `advice`: the end of the sentence about them. `saves`: the share of their fixed cost that one
    call saves, apart from the number of calls."""

    name: str
    title: str
    what: str
    advice: str = ""
    saves: float = 1.0


CALLS_OF = (
    ManyCalls(
        "repeated",
        "A module is called many times with inputs that could be one batch",
        "calls a module {calls} times in a pass: make the inputs one batch. No call needs the"
        " result of another. {ratio} of the operators of the forward pass are in these calls",
        " with their backward pass. Batch norm then sees all inputs together",
    ),
    ManyCalls(
        "gradient_loop",
        "One result is differentiated in many calls",
        "differentiates one result in {calls} calls: torch.func.jacrev, or"
        " torch.autograd.grad(..., is_grads_batched=True), does it in one call (of"
        " torch.autograd.functional: vectorize=True). {ratio} of the operators of the passes are"
        " in these calls, or differentiate their results again",
        saves=BY_ROWS,
    ),
)


def in_many_calls(case: Case, kind: ManyCalls) -> Avoidable | None:
    """Find short operators of calls that could be one call for a batch."""
    names = f"{kind.name}.calls", f"{kind.name}.operators_ratio"
    calls, ratio = (case.get(name, 0.0) for name in names)
    if calls < CALLS or ratio < REPEATED or not case.has("operators_per_step", "step_s"):
        return None
    compute = passes.compute_ratio(case)
    each_s = case.value("step_s") * compute / case.value("operators_per_step")
    if each_s > SHORT:
        return None
    share, place = compute * ratio, case.place(names[0])
    what = kind.what.format(calls=f"{calls:.0f}", ratio=percent(ratio))
    evidence = case.evidence(
        (names[0], CALLS),
        (names[1], REPEATED),
        "operators_per_step",
        "forward_ratio",
        "backward_ratio",
        "step_s",
    ) + case.if_known("probe.batch_cost_ratio", "probe.batch_factor")
    return Avoidable(
        kind.title,
        share,
        share * (1 - 1 / calls) * fixed_ratio(case, each_s) * kind.saves,
        ratio / REPEATED,
        "medium",
        f"{words(place)} {what}, {1e6 * each_s:.0f} µs each{kind.advice}",
        evidence,
        place,
    )


def fixed_ratio(case: Case, each_s: float) -> float:
    """Return the share of a pass that does not grow with the batch. Probe P2 measures this share.
    Without probe P2, the share is START_S over the time of an operator. START_S is too low on a
    busy machine, so the share is at least one half if operators are SHORT."""
    factor = case.get("probe.batch_factor", 1.0)
    if factor > 1 and case.has("probe.batch_cost_ratio"):
        return max(
            0.0, min(1.0, (1 - case.value("probe.batch_cost_ratio")) * factor / (factor - 1))
        )
    return min(1.0, max(0.5, START_S / each_s))


def decomposed(case: Case) -> Avoidable | None:
    """Find a decomposition of a matrix in the forward pass or in the loss."""
    flops, share = case.get("decomposition.flops_ratio", 0.0), case.get("stack.operator_ratio", 0.0)
    place, calls = case.place("stack.operator_ratio"), case.place("decomposition.flops_ratio")
    # the operators of another function may take most of the time
    if place is None or (calls is None and place.part != "loss"):
        return None
    if calls is not None and _function(place)[:2] != _function(calls)[:2]:
        return None
    if flops < DECOMPOSED or share < OPERATOR:
        return None
    summary = (
        f"{percent(share)} of each step is in operators of {words(place)}: try a cheaper norm, a"
        " decomposition in some steps only, or an iteration of products. The graph of the loss"
        " holds a decomposition of a matrix (SVD, eigenvalues, inverse and the like). It runs far"
        " below the speed of products, and so does its gradient"
    )
    return Avoidable(
        "A decomposition of a matrix slows every step",
        share,
        share,
        share / OPERATOR,
        "medium",
        summary,
        case.evidence(
            ("stack.operator_ratio", OPERATOR), ("decomposition.flops_ratio", DECOMPOSED)
        ),
        place,
    )


class Spare(NamedTuple):
    """A kind of FLOPs that a program can leave out. `what`: a clause about them, after their place.
    `saves`: the share of their time that a program without them saves. `takes_memory`: a program
    without them needs more memory."""

    title: str
    what: str
    saves: float = 1.0
    takes_memory: bool = False


SPARE = {
    "spare.same_pass_ratio": Spare(
        "A pass of a step is computed twice",
        "calls a module with the inputs of an earlier call of the same step. Call the module once"
        " and use its result twice, unless the module keeps a state",
    ),
    "spare.backward_again_ratio": Spare(
        "Several backward passes go through the same operators",
        "repeats operators of an earlier backward pass of the same step. Add"
        " the losses, and call backward() once: the sum of the gradients is the same",
    ),
    "spare.unused_gradients_ratio": Spare(
        "The backward pass computes gradients that nobody uses",
        "computes gradients that no optimizer uses. Detach the input of the part that is trained,"
        " or set requires_grad_(False) on the other part",
    ),
    "spare.zeros_ratio": Spare(
        "A product with zeros takes the place of a lookup",
        "multiplies a matrix in which nearly all entries are zero, as in one-hot vectors. Look the"
        " rows up: nn.Embedding, weight[indices], or F.embedding_bag for several rows; a matrix of"
        " neighbours can be a sparse tensor",
        saves=0.9,
    ),
    "spare.unlabelled_ratio": Spare(
        "Scores are computed for entries without a label",
        "computes scores whose label the loss ignores. Select the entries with a label before the"
        " last layer",
    ),
    "spare.padding_ratio": Spare(
        "Most entries of a batch only fill it up",
        "reads rows of ids that are filled up with one id, and the passes compute with all of"
        " them. Pad each batch to its own longest row, put rows of about one length into a batch,"
        " or pack several into one row",
    ),
    "recomputed.flops_ratio": Spare(
        "Activations are computed again although memory has room",
        "makes forward passes a second time, by torch.utils.checkpoint or its like. Without it a"
        " step takes less time and more memory",
        takes_memory=True,
    ),
}
"""The kinds by the signal with their share of the FLOPs of the passes."""


def spare(case: Case, signal: str) -> Avoidable | None:
    """Find FLOPs of the passes that the program can leave out."""
    kind, ratio = SPARE[signal], case.get(signal, 0.0)
    if ratio < SPARED or (kind.takes_memory and case.get("memory_used_ratio", 1.0) > ROOM):
        return None
    compute, place = passes.compute_ratio(case), case.place(signal)
    memory = (("memory_used_ratio", ROOM),) if kind.takes_memory else ()
    return Avoidable(
        kind.title,
        compute * ratio,
        compute * ratio * kind.saves,
        ratio / SPARED,
        "medium",
        f"{words(place) if place else 'The program'} {kind.what}. These are {percent(ratio)} of the"
        " FLOPs of the passes",
        case.evidence((signal, SPARED), *memory, "forward_ratio", "backward_ratio"),
        place,
    )


def found(case: Case) -> Avoidable | None:
    """Return the work whose removal would save most; None if there is no such work. Raise Missing
    if the shares of a step are not measured.

    On a GPU, work of the host costs at most the time in which the GPU has no work. FLOPs that could
    be left out cost time of the GPU itself.
    """
    kinds = [
        work._replace(saves=device.lost(case, work.saves))
        for work in (
            update(case),
            heavy_update(case),
            grouped(case),
            *(in_many_calls(case, kind) for kind in CALLS_OF),
            decomposed(case),
        )
        if work is not None
    ]
    kinds += [work for signal in SPARE if (work := spare(case, signal)) is not None]
    return max((work for work in kinds if work.saves), key=lambda work: work.saves, default=None)


def in_function(case: Case) -> bool:
    """Return whether the work is in the function that host.slow_function would name."""
    if (work := found(case)) is None or work.place is None:
        return False
    other = case.place("stack.function_ratio")
    return other is not None and _function(work.place) == _function(other)


def _function(place: CodePlace) -> tuple[str, str, str]:
    return place.line.rpartition(":")[0], place.function, place.part
