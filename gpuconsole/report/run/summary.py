"""Every figure of a run, one row each."""

from __future__ import annotations

from gpuconsole.model.job.facts import AGENT
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report import units
from gpuconsole.report.cells import clean
from gpuconsole.report.parts import Line, Report, labelled
from gpuconsole.report.run.account import account_segments
from gpuconsole.report.run.attainable import share_text
from gpuconsole.report.run.figures import costs, step_time, throughput, utilization, work
from gpuconsole.report.run.serving import latency_report, request_report
from gpuconsole.report.run.validity import validity_report


def cause_report(run: Run) -> Report:
    """Why a run failed, or why the agent of a job is off, with the last lines of the traceback; empty where nothing went wrong."""
    found: Report = [labelled("error", visible(run.error), "alert")] if run.error else []
    if run.is_job and run.traceback:
        found.append(labelled("agent", visible(run.unavailable.get(AGENT, "")), "alert"))
    return [*found, *(Line([(clean(row.expandtabs()), "dim")], indent=2) for row in run.traceback)]


def figures(run: Run) -> Report:
    """Every measured figure of a run with its label."""
    summary = run.summary
    found: Report = validity_report(run)
    rate, _ = run.throughput
    if rate:
        found.append(
            labelled(
                "throughput",
                [(throughput(run), "title"), (f" (n={rate.n})", "dim"), (f"   {share}" if (share := share_text(run)) else "", "")],
            )
        )
    elif run.is_job and summary.steps:
        found.append(labelled("throughput", f"{units.NA}: the number of samples in a batch is not known"))
    if run.baseline is not None:
        found.append(labelled("baseline", run.baseline.words))
    found += request_report(run)
    if summary.step_time_s is not None:
        p50, p99 = units.p50_p99(summary.step_time_s.p50, summary.step_time_s.p99)
        found.append(labelled("step time", f"mean {step_time(run)}   p50 {p50}   p99 {p99}"))
    if summary.phases_ratio:
        found.append(labelled("request" if run.serves else "step", account_segments(run)))
    found += latency_report(run)
    if summary.flops_per_s:
        found.append(labelled("arithmetic", _and(units.quantity(summary.flops_per_s, "FLOP/s"), utilization(run, "MFU"))))
    if summary.memory_bytes_per_s:
        moved = f"{units.quantity(summary.memory_bytes_per_s, 'bytes/s')} must move"
        found.append(labelled("memory rate", _and(moved, utilization(run, "MBU"))))
    if summary.loss_first is not None and summary.loss_last is not None:
        found.append(labelled("loss", f"{summary.loss_first:.3f} -> {summary.loss_last:.3f}"))
    if summary.memory_peak_bytes:
        found.append(labelled("memory peak", units.quantity(summary.memory_peak_bytes, "bytes")))
    if summary.energy_j:
        per_watt = f"{units.quantity(summary.flops_per_j, 'FLOP/s')}/W" if summary.flops_per_j else ""
        found.append(labelled("energy", _and(units.quantity(summary.energy_j, "J"), per_watt)))
    if cost := costs(summary.tokens_per_j, summary.cost_per_million_tokens):
        found.append(labelled("cost", "   ".join(cost)))
    if summary.overhead_s_per_step is not None:
        found.append(labelled("overhead", f"{units.duration(summary.overhead_s_per_step).strip()} per step, measured by the agent itself"))
    return found


def _and(*texts: str) -> str:
    return "   ".join(filter(None, texts))


def run_head(run: Run) -> Line:
    """The identity and the duration of a run."""
    change = describe_changes(run.changes) if run.changes else "baseline"
    facts = f"  {run.scenario}  on {run.device}  {run.state}  ({change}; {run.duration_s:.1f} s, {work(run)})"
    style = "alert" if run.state == "failed" else ""
    return Line([(f"run {run.id}", "heading"), (facts, style)])
