"""host.avoidable_work: the passes or the weight update do work that the program could leave out."""

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
        avoidable.HEAVY,
        avoidable.COSTLY,
        avoidable.GROUPS,
        avoidable.GROUPED,
        avoidable.CALLS,
        avoidable.REPEATED,
        avoidable.SHORT,
        avoidable.DECOMPOSED,
        avoidable.OPERATOR,
        avoidable.ROOM,
        avoidable.SPARED,
    )
    reads = (
        "stack.update_ratio", "stack.update_python_ratio", "stack.operator_ratio",
        "decomposition.flops_ratio", "repeated.calls", "repeated.operators_ratio",
        "operators_per_step", "loss_ratio", "probe.batch_cost_ratio", "probe.batch_factor",
        "memory_used_ratio", "model.trained_tensors",
        "model.optimizer_groups", "stack.optimizer_ratio", "optimizer_ratio",
        "gradient_loop.calls", "gradient_loop.operators_ratio",
        *avoidable.SPARE,
        *device.IDLE_SIGNALS,
    )  # fmt: skip
    text = """The rule finds several kinds of work that a program can often leave out. First, the
program's own optimizer or gradient clipping runs some short operators for each tensor in turn, for
which the functions torch._foreach_* take a list of all tensors; or long operators in each step,
such as the roots of matrices; or an optimizer has one parameter group for each tensor and works on
one after the other. Second, a forward pass calls
one module four times or more with inputs of one shape, and no input depends on the result of an
earlier call. One call with all inputs as one batch starts each operator once. The rows of a
Jacobian that are computed in a call of torch.autograd.grad each are such work, too. Third, the
forward pass or the loss decomposes a matrix. Fourth, torch.utils.checkpoint computes forward
passes twice although less than half of the memory is in use. Last, FLOPs whose result nobody needs:
a pass with the inputs of an earlier pass of the same step (without dropout), a second backward pass
through the same operators, gradients that no optimizer uses, products with one-hot vectors, scores
of entries that the loss ignores, and padding.
Stack samples show the function and its share of a step. The operators of one counted step show the
calls, the decompositions and the FLOPs. Labels, ids and matrices are read only if they are in the
memory of the host: no read waits for a GPU. The rule ignores a cell of a recurrent network,
a layer with shared weights and a model that is unrolled step by step: each call needs the result of
the call before. The rule also ignores calls with long operators, because a larger batch does not
make long operators faster."""
    ignore = (
        "The method needs this work: the decomposition is the model, or memory is short at other"
        " times."
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
