"""host.debug_mode: anomaly mode is on, or a profiler of the program's own records, in every
step."""

from __future__ import annotations

from gpuconsole.diagnosis.families import host
from gpuconsole.diagnosis.rule import MAX_SHARE, Case, Finding, Rule, high_if, percent


class HostDebugMode(Rule):
    id = "host.debug_mode"
    title = "A mode for debugging slows every step"
    jobs_only = True
    clear_title = "No mode for debugging is on"
    thresholds = (host.ON,)
    reads = (
        "mode.anomaly_ratio",
        "mode.check_nan_ratio",
        "mode.profiler_ratio",
        "stack.anomaly_ratio",
    )
    text = """The agent in the job asks torch twice a second, at the start of a backward pass, which
modes are on.
Anomaly mode (torch.autograd.set_detect_anomaly, or detect_anomaly=True of a Lightning Trainer)
keeps a stack trace of each operator in the forward pass, and checks each gradient for nan in the
backward pass (check_nan). Torch's documentation: "This mode should be enabled only for debugging as
the different tests will slow down your program execution." Stack samples show the least share of a
step that the traces take: that share is what the finding can recover. The checks in the backward
pass, and the objects that the mode makes and frees, come on top; nothing measures them. What helps:
turn the mode off, and on again only to find the operator that makes a nan.
A profiler (torch.profiler, torch.autograd.profiler) records each operator. Its cost is not known,
because no step without it is seen. What helps: a schedule that records some steps, or no profiler.
Profiler windows of gpuconsole do not count.
Rules about the passes have no conclusion meanwhile: their times are not those of the program
alone."""
    ignore = (
        "You look for the operator that makes a nan, or you want the profile, and the mode goes off"
        " afterwards."
    )

    def judge(self, case: Case) -> Finding:
        anomaly, profiler = case.value("mode.anomaly_ratio"), case.value("mode.profiler_ratio")
        evidence = case.evidence(("mode.anomaly_ratio", host.ON), ("mode.profiler_ratio", host.ON))
        level = max(anomaly, profiler) / host.ON
        if level < 1:
            return self.clear(level, evidence)
        summaries = []
        traces = 0.0
        if host.in_anomaly_mode(case):
            traces = min(MAX_SHARE, case.get("stack.anomaly_ratio", 0.0))
            evidence += case.if_known("mode.check_nan_ratio", "stack.anomaly_ratio")
            cost = f" (at least {percent(traces)} of each step)" if traces else ""
            checks = (
                ", and checks each gradient of the backward pass for nan (its time is not known)"
                if case.get("mode.check_nan_ratio", 1.0) >= host.ON
                else ""
            )
            summaries.append(
                "anomaly mode keeps a stack trace of each operator in the forward"
                f" pass{cost}{checks}. Call torch.autograd.set_detect_anomaly(False), and turn the"
                " mode on only to find a nan"
            )
        if host.is_profiled(case):
            summaries.append(
                "a profiler of the program records each operator, in every step. Its cost is not"
                " known: try the job without it, or give it a schedule that records some steps"
                " (torch.profiler.schedule)"
            )
        title = (
            ""
            if len(summaries) > 1
            else "Anomaly mode is on in every step"
            if host.in_anomaly_mode(case)
            else "A profiler runs in every step"
        )
        return self.fires(
            level,
            evidence,
            ". ".join(summaries),
            recoverable=traces,
            confidence=high_if(bool(traces)),
            title=title,
        )
