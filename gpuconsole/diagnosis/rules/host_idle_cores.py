"""host.idle_cores: on a CPU, the training process computes on fewer threads than there are free
cores."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm, passes
from gpuconsole.diagnosis.rule import Case, Finding, Interval, Rule, Threshold, short_of

OTHERS = Threshold(
    "others", 0.5, "ratio", "free cores are not idle if other programs use half of them"
)
ERROR = 0.25
"""Relative error of the predicted gain: loader, console and other programs need the idle core now
and then."""


class HostIdleCores(Rule):
    id = "host.idle_cores"
    title = "CPU cores are idle while the training thread computes"
    clear_title = "More CPU cores would gain nothing"
    thresholds = (OTHERS, passes.GAIN)
    knobs = ("num_threads",)
    reads = (
        "is_gpu", "step_s", "forward_ratio", "loss_ratio", "backward_ratio", "threads", "cores",
        "host.others_cpu_ratio", "probe.threads_tried", "probe.threads_speedup",
        "probe.threads_spread", "optimizer_ratio",
    )  # fmt: skip
    text = """A run on a CPU computes on num_threads threads. The default leaves one core to the
loader, the console and other programs, which keeps timings steady. If cores are idle, more threads
may compute faster. Probe P5 runs the current pass on all cores that the loader's workers leave, and
alternately on the present number of threads, in wall-clock time, so that the needs of other
programs are included. Small operations gain nothing, since their distribution to threads costs more
than it saves. With num_threads = 0 the finding is a note: one core was left free on purpose."""

    def judge(self, case: Case) -> Finding:
        if case.on_gpu:
            return self.clear(summary="the run computes on a GPU")
        if comm.several(case):
            return self.clear(summary="several processes share the cores")
        compute, threads, cores = (
            passes.compute_ratio(case),
            case.value("threads"),
            case.value("cores"),
        )
        most = cores - int(case.knobs.get("num_workers", 0))
        seen = case.evidence("threads", "cores") + case.if_known("host.others_cpu_ratio")
        if most <= threads:
            return self.clear(0.0, seen, "no core is free")
        if case.get("host.others_cpu_ratio", 0.0) * cores >= OTHERS * (most - threads):
            return self.clear(0.0, seen, "other programs use the free cores")
        if compute * (1 - threads / most) < passes.GAIN:
            return self.clear(0.0, seen, "the passes take too little of the step")
        tried, more = case.value("probe.threads_tried"), passes.Swap(case, "threads")
        recoverable = more.saves
        evidence = more.evidence + case.evidence("probe.threads_tried") + seen
        level = recoverable / passes.GAIN
        if recoverable < passes.GAIN:
            return self.clear(short_of(level), evidence)
        summary = (
            f"{threads:.0f} of {cores:.0f} cores compute; the same pass runs {more.speedup:.2f}x as"
            f" fast on {tried:.0f} cores"
        )
        why = (
            "all cores that the loader's workers leave; the console and other programs need some of"
            " their time"
        )
        code = f"torch.set_num_threads({tried:.0f})"
        change = case.suggest({"num_threads": int(tried)}, _predicted(more, compute), why, code)
        if case.knobs.get("num_threads") == 0:  # one core is free on purpose
            return self.note(
                level, evidence, summary, confidence=more.confidence, suggestions=[change]
            )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=more.confidence,
            suggestions=[change],
        )


def _predicted(more: passes.Swap, compute: float) -> Interval:
    """From the passes alone being faster, to the optimizer being faster by the same factor."""
    low, high = (
        1 / (1 - share * (1 - 1 / more.speedup))
        for share in (compute, compute + more.case.get("optimizer_ratio", 0.0))
    )
    error = max(ERROR, more.error)
    return Interval(1 + (low - 1) * (1 - error), 1 + (high - 1) * (1 + error))
