"""host.avoidable_work: the passes or the update of the weights do work that could be left out."""

from __future__ import annotations

from gpuconsole.diagnosis.families import avoidable, device
from gpuconsole.diagnosis.rule import Case, Finding, Missing, Rule


class HostAvoidableWork(Rule):
    id = "host.avoidable_work"
    title = "Passes or update do work that could be left out"
    jobs_only = True
    clear_title = "No work of passes and update is known that could be left out"
    thresholds = (
        avoidable.UPDATE,
        avoidable.PYTHON,
        avoidable.EACH,
        avoidable.MANY,
        avoidable.CALLS,
        avoidable.REPEATED,
        avoidable.SHORT,
        avoidable.DECOMPOSED,
        avoidable.OPERATOR,
        avoidable.RECOMPUTED,
        avoidable.ROOM,
    )
    reads = (
        "stack.update_ratio", "stack.update_python_ratio", "stack.operator_ratio",
        "decomposition.flops_ratio", "repeated.calls", "repeated.operators_ratio",
        "operators_per_step", "loss_ratio", "probe.batch_cost_ratio", "probe.batch_factor",
        "recomputed.flops_ratio", "memory_used_ratio", "model.trained_tensors",
        *device.IDLE_SIGNALS,
    )  # fmt: skip
    text = """Four kinds of work of torch's operators that a program can often do without. An
optimizer, or a clipping of gradients, of the program's own that runs some short operators for one
tensor after the other: the functions torch._foreach_* take a list of all tensors. A module that a
forward pass calls four times or more with inputs of one shape, none of which comes from the result
of an earlier call: one call with all of them as one batch starts each operator once. A
decomposition of a matrix in the forward pass or in the loss. Passes that torch.utils.checkpoint
makes a second time although less than half of the memory is in use.
Stack samples show the function and its share of a step; the operators of one counted step show the
calls, the decompositions and what is computed again. A cell of a recurrent network, a layer with
shared weights and a model that is unrolled step by step are left alone: each call needs the result
of the one before. So are long operators, which gain nothing from a larger batch."""
    ignore = (
        "The method needs it: the decomposition is the model, or memory is short at other times."
    )

    def judge(self, case: Case) -> Finding:
        if case.on_gpu and not device.knows_idle(case):
            raise Missing("host.caught_up_ratio")
        case.value("stack.update_ratio")  # too few samples
        work = avoidable.found(case)
        if work is None:
            shown = ("stack.update_ratio", avoidable.UPDATE), ("repeated.calls", avoidable.CALLS)
            return self.clear(0.0, case.if_known(*shown) + device.idle_evidence(case))
        return self.fires(
            max(1.0, work.level),
            work.evidence,
            work.summary,
            recoverable=work.saves,
            confidence=work.confidence,
            title=work.title,
        )
