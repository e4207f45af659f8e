"""host.python_overhead: the script's own Python code between the phases takes a large part of every
step."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device, host, loader
from gpuconsole.diagnosis.families.host import SCRIPT as SHARE
from gpuconsole.diagnosis.rule import (
    CantTell,
    Case,
    Evidence,
    Finding,
    Interval,
    Rule,
    Suggestion,
    Threshold,
    high_if,
    percent,
    placed,
    short_of,
)

IN_SCRIPT = Threshold(
    "in_script",
    0.05,
    "ratio",
    (
        "stack samples must find the script: other time outside the phases is the cost of the"
        " account itself"
    ),
)
MET = Threshold(
    "met",
    0.25,
    "ratio",
    (
        "a second of stack samples that finds less than a quarter of this time has not met it: few"
        " steps have it"
    ),
)
GC = Threshold(
    "gc",
    0.05,
    "ratio",
    "5 % of the time in the garbage collector: the collector is the cause, not the lines around it",
)


DIFFER = Threshold(
    "differ",
    0.1,
    "ratio",
    "stack samples and step parts agree within a tenth of a step",
)
BATCHES = ". This code runs after a step and before the next forward pass"
WAITS = Threshold(
    "waits", 0.5, "ratio", "a line that uses the CPU for less than half of its time waits"
)


class HostPythonOverhead(Rule):
    id = "host.python_overhead"
    title = "The script's own Python code slows every step"
    clear_title = "The script's own Python code takes little time"
    thresholds = (SHARE, IN_SCRIPT, MET, GC, WAITS, DIFFER)
    knobs = ("gc_collect_every", "gradient_percentiles")
    reads = (
        "other_ratio",
        "gc.pause_ratio",
        "stack.logging_ratio",
        "stack.script_ratio",
        "stack.line_ratio",
        "stack.line_cpu_ratio",
        "data_wait_ratio",
        "stack.outside_ratio",
        "runq_ratio",
        *device.IDLE_SIGNALS,
        "loss_ratio",
    )
    text = """Time outside all named phases: metrics over Python lists, conversions, garbage
collection. Probe P15 samples the stack of the training thread during ordinary steps and names the
line. gc.callbacks time the garbage collector; where it takes half of this time, no samples are
needed.
Samples of one second miss work that only few steps do. The finding then names no line. Time outside
of the script is the cost of our own measurement, and the rule does not fire on it. What helps:
tensor operations instead of lists, gc.freeze() and no gc.collect() in the loop, and another process
for work that can wait.
On a GPU, CUDA events measure these times on the stream. Kernels that run between the phases (a
weight average, augmentation, a simulation) are work of the GPU. So the rule claims at most the time
in which the GPU is measured to have no work, minus the share in which the thread waits for a core.
A program without a DataLoader makes its batches in its own lines: a simulator, a replay buffer, a
request. This time counts here too. The CPU time of the training thread says whether the line
computes or waits. What helps: a line that computes moves to a DataLoader with workers, or to
vectorised code. A line that waits, for an answer or by time.sleep, runs in a thread while the model
trains on the batch before."""

    def judge(self, case: Case) -> Finding:
        batches = 0.0 if loader.has_loader(case) else case.value("data_wait_ratio")
        share = case.value("other_ratio") + batches
        # samples over the whole run: what they do not find in the script is not there
        if case.is_job and case.has("stack.script_ratio"):
            share = min(share, case.value("stack.script_ratio"))
        # the values of log records are part of their cost
        logged = host.at_line_of(case, "logging")
        share = max(0.0, share - logged)
        evidence = case.evidence(("other_ratio", SHARE))
        if share < SHARE and (differ := _differs(case)):
            raise CantTell(differ)
        if batches:
            evidence += case.evidence(("data_wait_ratio", SHARE))
        if share < SHARE:
            return self.clear(share / SHARE, evidence)
        if case.on_gpu:
            evidence += device.idle_evidence(case)
            if device.works_in(case, share):
                words = f"{percent(share)} of a step lies between the phases, and"
                return self.clear(0.0, evidence, f"{words} {device.idle_words(case)}")
            if _waits_for_gpu(case):
                where, _ = device.waiting_place(case)
                return self.clear(0.0, evidence, f"this time waits for the GPU, at {where}")
            share = device.lost(case, share) * device.with_core_ratio(case)
            if share < SHARE:
                return self.clear(short_of(share / SHARE), evidence + case.if_known("runq_ratio"))
        pause = case.get("gc.pause_ratio", 0.0)
        collects = pause >= GC and pause >= share / 2
        if not collects and case.value("stack.script_ratio") < IN_SCRIPT and pause < GC:
            return self.clear(
                0.99,
                evidence + self._measured(case),
                "a second of stack samples has not met this time in the script",
            )
        waits = (
            not collects
            and case.get("stack.script_ratio", share) >= MET * share
            and case.get("stack.line_cpu_ratio", 1.0) < WAITS
        )
        rare = not collects and case.get("stack.script_ratio", share) < MET * share
        if rare:
            cause = (
                " is Python code that runs in few steps: one second of stack samples did not find"
                f" it ({percent(case.value('stack.script_ratio'))}). Look at what the loop does in"
                " some steps only, such as a report, a metric over many outputs, or a first"
                " checkpoint"
            )
        elif collects:
            cause = f" is the garbage collector: {percent(pause)}"
        elif batches >= share / 2 or waits:
            cause = (
                f" is the script's own code, {_line(case, waits)}"
                f"{BATCHES if batches >= share / 2 else ''}"
            )
        else:
            cause = f" is the script's own Python code: {_line(case, waits)}"
        summary = f"{percent(share)} of step time{cause}"
        evidence += self._measured(case)
        changes = [_collect_less(case, share) if collects else _by_tensors(case, share)]
        title = (
            "The script's own code waits in every step"
            if waits
            else "The script's own Python code slows a few steps"
            if rare
            else ""
        )
        level, confidence = share / SHARE, high_if(share >= 2 * SHARE and not rare)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share * 0.9,
            confidence=confidence,
            title=title,
            suggestions=changes,
        )

    def _measured(self, case: Case) -> tuple[Evidence, ...]:
        return case.if_known(
            "stack.script_ratio", "stack.line_ratio", "stack.line_cpu_ratio", "gc.pause_ratio"
        )


def _waits_for_gpu(case: Case) -> bool:
    """Return whether the line with most of the samples waits for the GPU in many calls. The cause
    is then these waits, not the code."""
    if not case.has("sync.wait_s", "sync.calls", "step_s"):
        return False
    if device.waits_per_pass(case) < device.CALLS:
        return False
    place, (waits, _) = case.place("stack.line_ratio"), device.waiting_code(case)
    same = place is not None and waits is not None and place.line == waits.line
    return same and device.waited_ratio(case) >= device.WAITED


def _differs(case: Case) -> str:
    """Return why stack samples and step parts disagree: the samples find the script for a longer
    time than the parts of the step leave for it. The agent has then taken lines of the script for a
    pass. Return an empty string if the two agree. Also return it on a GPU: there, the parts are
    times of the stream and not of the host."""
    samples = case.get("stack.script_ratio", 0.0)
    parts = sum(case.get(f"{part}_ratio", 0.0) for part in ("other", "data_wait", "loss"))
    if samples - parts < DIFFER or case.get("is_gpu", 0.0) or not case.is_job:
        return ""
    return (
        f"stack samples find the script's own lines in {percent(samples)} of a step, and the parts"
        f" of the step have {percent(parts)} for them"
    )


def _line(case: Case, waits: bool) -> str:
    """The line with most of the time, in words."""
    place, share = case.place("stack.line_ratio"), case.value("stack.line_ratio")
    most = (
        "most of it"
        if share >= case.value("stack.script_ratio") / 2
        else f"the largest part ({percent(share)})"
    )
    cpu = (
        (
            f". This line waits: it uses the CPU only {percent(case.value('stack.line_cpu_ratio'))}"
            " of its time"
        )
        if waits
        else ""
    )
    return f"{most} in {placed(place) if place is not None else 'one function'}{cpu}"


def _collect_less(case: Case, share: float) -> Suggestion | None:
    why = "automatic collection only: a full collection visits every object"
    code = "gc.freeze()   # after building the model; and no gc.collect() in the loop"
    return case.suggest(
        {"gc_collect_every": 0}, _interval(case.value("gc.pause_ratio"), share), why, code
    )


def _by_tensors(case: Case, share: float) -> Suggestion | None:
    if case.knobs.get("gradient_percentiles") != "python":
        return None
    why = "the same figures with tensor operations, without a Python object per value"
    code = "torch.quantile(values, quantiles)   # not sorted(values.tolist())"
    return case.suggest({"gradient_percentiles": "torch"}, _interval(share, share), why, code)


def _interval(measured: float, share: float) -> Interval:
    low, high = sorted((measured, share))
    return Interval(1 / (1 - min(0.95, 0.85 * low)), 1 / (1 - min(0.95, 1.05 * high)))
