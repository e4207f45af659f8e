"""host.slow_function: Python code of the program within the passes takes a large part of every
step."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Missing,
    Rule,
    Threshold,
    high_if,
    percent,
    placed,
)

SHARE = Threshold(
    "share",
    0.25,
    "ratio",
    (
        "modules of a healthy model that call short operators themselves take up to 18 % of a step"
        " each"
    ),
)
OWN = Threshold(
    "own",
    0.4,
    "ratio",
    (
        "with less of its time in Python or in waits, a function mostly calls operators of torch,"
        " as any model does"
    ),
)
WITHOUT = Threshold(
    "without_gradients",
    0.25,
    "ratio",
    (
        "a teacher's pass takes about a quarter of a step: half of a forward and backward pass of"
        " its own size"
    ),
)
MANY = Threshold(
    "operators",
    2000,
    "",
    (
        "a loop over the steps of a sequence; twelve layers of an encoder have about 2200, of 10 µs"
        " and more each"
    ),
)
SHORT = Threshold(
    "operator",
    6e-6,
    "s",
    (
        "torch takes 3 to 5 µs to start an operator and to record it for the backward pass: there"
        " is little else in it"
    ),
)
LOOPED = Threshold(
    "looped",
    0.5,
    "ratio",
    (
        "a loop of cells of 100 steps takes 60 to 80 % of a step with its backward pass; the loop"
        " alone took 23 to 33 % in seven runs of the same program"
    ),
)


LOOP = "A loop of short operators slows the passes"


def _operator_s(case: Case) -> float | None:
    """The mean time of an operator in the passes; None on a GPU, which runs operators while the
    host goes on, and where it is not known."""
    if case.on_gpu or not case.has(
        "operators_per_step", "step_s", "forward_ratio", "backward_ratio"
    ):
        return None
    return (
        case.value("step_s")
        * (case.value("forward_ratio") + case.value("backward_ratio"))
        / case.value("operators_per_step")
    )


def _looped(case: Case) -> float | None:
    """The share of a step that a loop of short operators takes in the forward pass and in the
    backward pass. The loop has the same share of both passes. None where the operators are not
    short, or where the function is not in the forward pass."""
    each_s = _operator_s(case)
    if (
        each_s is None
        or each_s > SHORT
        or case.value("operators_per_step") < MANY
        or (place := case.place("stack.function_ratio")) is None
        or place.part != "forward"
    ):
        return None
    forward, share = case.value("forward_ratio"), case.value("stack.function_ratio")
    return share + case.value("backward_ratio") * min(1.0, share / forward) if forward else None


def _place(case: Case) -> str:
    place = case.place("stack.function_ratio")
    return placed(place) if place is not None else "one function"


class HostSlowFunction(Rule):
    id = "host.slow_function"
    title = "A function of the program slows the passes"
    jobs_only = True
    clear_title = "No function of the program slows the passes"
    thresholds = (SHARE, OWN, WITHOUT, MANY, SHORT, LOOPED)
    reads = (
        "stack.function_ratio", "stack.function_python_ratio", "stack.function_waits_ratio",
        "stack.no_grad_ratio", "eval_ratio", "generation_ratio", "generation.passes_per_step",
        "recent.eval_ratio", "operators_per_step", *device.IDLE_SIGNALS,
    )  # fmt: skip
    text = """Stack samples of the training thread show which function of the program takes most of
the time within the passes: a loop over the elements of a batch, a cell of a recurrent network that
runs step by step, a metric, text that is generated in each step, a hook of the backward pass. Time
in modules of torch does not count. A function that calls only large operators does not count either
(but a loop that runs thousands of operators of a few µs does). On a GPU, a function costs at most
the time in which the GPU is measured to have no work. What helps: one operator for the whole batch
in place of a loop over its elements, a fused module (nn.LSTM in place of a loop of cells), the same
work in fewer steps, or in another process.
The loss is the time from the end of the model's call to the backward pass. A matcher or a metric in
Python counts there with the functions that it calls. Passes without gradients within a step are
reported as a note: generation (many passes of the model that is trained), or the passes of a
teacher. Only you know whether the program needs these passes. What helps: fewer passes, states that
are kept from token to token, several sequences at once."""
    ignore = (
        "The function is the work that you want to do, and no operator does it for a whole batch."
    )

    def judge(self, case: Case) -> Finding:
        if case.on_gpu and not device.knows_idle(case):
            raise Missing("host.caught_up_ratio")
        share, python, waits = (
            case.value(f"stack.function_{name}ratio") for name in ("", "python_", "waits_")
        )
        evidence = case.evidence(
            ("stack.function_ratio", SHARE),
            ("stack.function_python_ratio", OWN),
            "stack.function_waits_ratio",
        )
        most = device.idle_in_part(case, case.place("stack.function_ratio"))
        if case.on_gpu:
            evidence += device.idle_evidence(case) + case.if_known(
                "host.ahead_ratio", "sync.wait_s"
            )
            waited = device.waited_ratio(case) if case.has("sync.wait_s", "step_s") else 0.0
            if share >= SHARE > min(share - waited, most):
                return self.clear(0.0, evidence, device.idle_words(case))
        caller = case.place("stack.no_grad_ratio")
        called = f", most of them called at {caller}" if caller is not None else ""
        generation = case.get("generation_ratio", 0.0)
        if generation >= WITHOUT and case.has("generation.passes_per_step"):
            passes = case.value("generation.passes_per_step")
            summary = (
                f"generation takes {percent(generation)} of the step, with {passes:.0f} passes per"
                f" step{called}"
            )
            evidence += case.evidence(("generation_ratio", WITHOUT), "generation.passes_per_step")
            return self.note(
                generation / WITHOUT,
                evidence,
                summary,
                confidence="high",
                title="The model generates for much of every step",
            )
        without = case.value("stack.no_grad_ratio") - case.recent("eval", 0.0) - generation
        if without >= WITHOUT:
            summary = (
                f"{percent(without)} of each step is in passes without gradients that are no"
                f" evaluation{called}"
            )
            evidence += case.evidence(("stack.no_grad_ratio", WITHOUT))
            return self.note(
                without / WITHOUT,
                evidence,
                summary,
                confidence="medium",
                title="Passes without gradients take much of every step",
            )
        looped = _looped(case)
        if python + waits < OWN and looped is not None and looped >= LOOPED:
            count, each_s = case.value("operators_per_step"), _operator_s(case) or 0.0
            evidence += case.evidence(
                ("operators_per_step", MANY), "forward_ratio", "backward_ratio", "step_s"
            )
            summary = (
                f"{percent(share)} of each step is in {_place(case)}, {percent(looped)} with its"
                f" backward pass. The passes run {count:.0f} operators in each step,"
                f" {each_s * 1e6:.1f} µs each: a loop of operators that are too short"
            )
            return self.fires(
                looped / LOOPED,
                evidence,
                summary,
                recoverable=looped / 2,
                confidence="medium",
                title=LOOP,
            )
        if share < SHARE:
            return self.clear(share / SHARE, evidence)
        if python + waits < OWN:
            return self.clear(
                0.99, evidence, "the largest function mostly calls operators of torch"
            )
        place = _place(case)
        what = (
            f"waits in {percent(waits)} of it"
            if waits > python
            else f"Python code, or operators too short to tell, in {percent(python)} of it"
        )
        summary = f"{percent(share)} of each step is in {place}: {what}"
        title = "A function of the program waits within the passes" if waits > python else ""
        sure = share >= 2 * SHARE and python + waits >= 1.5 * OWN
        return self.fires(
            share / SHARE,
            evidence,
            summary,
            recoverable=min(share * max(python, waits), most),
            confidence=high_if(sure),
            title=title,
        )
