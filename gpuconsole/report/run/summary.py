"""A session as plain text: what `--headless` prints when it ends."""

from __future__ import annotations

from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.finding import STAKE, Finding
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.run import Distribution, Run
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.model.text import visible
from gpuconsole.report.quantities import si
from gpuconsole.report.run.model_text import figure_lines, rank_lines
from gpuconsole.report.run.profile_text import profile_lines
from gpuconsole.report.run.serving_text import serving_lines


def session_text(snapshot: Snapshot) -> str:
    """Every run and trial, a block each."""
    blocks = [run_text(run, snapshot.trials) for run in snapshot.runs]
    blocks += [trial_text(trial, snapshot) for trial in snapshot.trials]
    return "\n\n".join(blocks)


def run_text(run: Run, trials: list[Trial]) -> str:
    change = describe_changes(run.changes) if run.changes else "baseline"
    lines = [f"run {run.id}  {run.scenario}  on {run.device}  {run.state}  ({change}; {run.duration_s:.1f} s, {_measured(run)})"]
    if run.error:
        lines.append(f"  error: {visible(run.error)}")
    lines += [f"  {line}" for line in (*_figures(run), *rank_lines(run), *figure_lines(run.figures))]
    if "models" in run.unavailable:
        lines.append(f"  models: {visible(run.unavailable['models'])}")
    if run.profile is not None:
        lines += [f"  {line}" for line in profile_lines(run.profile, run.summary.step_time_s.p50 if run.summary.step_time_s else None)]
    firing = [finding for finding in run.findings if finding.state == "fires"]
    lines.append("  diagnosis:" + ("" if firing else " nothing fires" + _why_nothing(run.findings)))
    for number, finding in enumerate(firing, 1):
        lines += [f"    {line}" for line in _finding_lines(number, finding)]
    return "\n".join(lines)


def _measured(run: Run) -> str:
    return f"{run.summary.requests} requests" if run.serves else f"{run.summary.steps} steady steps"


def _figures(run: Run) -> list[str]:
    summary = run.summary
    lines = []
    rate, unit = run.throughput
    if rate:
        lines.append(f"throughput   {_mean(rate, unit)}")
    if run.baseline is not None:
        lines.append(f"baseline     {run.baseline.words}")
    lines += serving_lines(run)
    step = summary.step_time_s
    if step is not None and step.p50 is not None and step.p99 is not None:
        lines.append(f"step time    p50 {step.p50 * 1e3:.1f} ms   p99 {step.p99 * 1e3:.1f} ms")
    if summary.phases_ratio:
        parts = sorted(summary.phases_ratio.items(), key=lambda item: -item[1])
        lines.append(
            ("request      " if run.serves else "step         ")
            + "  ".join(f"{name} {share:.1%}" for name, share in parts if share >= 0.005)
        )
    if summary.flops_per_s:
        mfu = f"   MFU {summary.mfu_ratio:.1%} of {summary.mfu_peak_source}" if summary.mfu_ratio is not None else ""
        lines.append(f"model        {si(summary.flops_per_s, 'FLOP/s')}{mfu}")
    if summary.memory_bytes_per_s:
        mbu = f"   MBU {summary.mbu_ratio:.1%} of {summary.mbu_peak_source}" if summary.mbu_ratio is not None else ""
        lines.append(f"memory       {si(summary.memory_bytes_per_s, 'B/s')} that must move{mbu}")
    if summary.loss_first is not None and summary.loss_last is not None:
        lines.append(f"loss         {summary.loss_first:.3f} -> {summary.loss_last:.3f}")
    if summary.memory_peak_bytes:
        lines.append(f"memory peak  {si(summary.memory_peak_bytes, 'B')}")
    if summary.energy_j:
        per_joule = f"   {summary.tokens_per_j:.3g} tokens/J" if summary.tokens_per_j else ""
        per_watt = f"   {si(summary.flops_per_j, 'FLOP/s')}/W" if summary.flops_per_j else ""
        lines.append(f"energy       {summary.energy_j:.0f} J{per_joule}{per_watt}")
    if summary.cost_per_million_tokens is not None:
        cost = summary.cost_per_million_tokens
        lines.append(f"cost         {cost:.4g} per million tokens, {cost / 1000:.3g} per thousand")
    if summary.overhead_s_per_step is not None:
        lines.append(f"measuring    {summary.overhead_s_per_step * 1e6:.0f} µs per step, self-measured")
    return lines


def _mean(rate: Distribution, unit: str) -> str:
    return f"{rate.mean:,.1f} ± {rate.std:,.1f} {unit} (n={rate.n})".replace(",", " ")


def _why_nothing(findings: list[Finding]) -> str:
    unsure = [finding for finding in findings if finding.state == "cant_tell"]
    clear = sum(1 for finding in findings if finding.state == "clear")
    if not findings:
        return ": nothing steady was measured"
    missing = sorted({signal for finding in unsure for signal in finding.missing})
    return f": {clear} rules clear, {len(unsure)} can't tell" + (f" (missing {', '.join(missing)})" if missing else "")


def _finding_lines(number: int, finding: Finding) -> list[str]:
    stake = "nothing to recover" if finding.note else f"{finding.recoverable_ratio:.0%} {STAKE[finding.resource]}"
    lines = [f"{number}. {finding.rule}  {finding.title}  ({stake}, confidence {finding.confidence})", f"   {finding.summary}"]
    for item in finding.evidence:
        against = f" (threshold {item.threshold:g})" if item.threshold is not None else ""
        lines.append(f"   - {item.signal} {item.value:.4g} {item.unit}{against}  [{item.source}]")
    for suggestion in finding.suggestions:
        predicted = suggestion.predicted_speedup
        gain = f"predicted {predicted.low:.2f}-{predicted.high:.2f}x" if predicted else "gain not predicted"
        lines.append(f"   > {suggestion.why}  [{gain}]")
    return lines


def trial_text(trial: Trial, snapshot: Snapshot) -> str:
    baseline = next((run for run in snapshot.runs if run.id == trial.baseline_run), None)
    lines = [f"trial {trial.id}  {describe_changes(trial.changes, baseline.knobs if baseline else None)}"]
    predicted = f"predicted {trial.predicted.low:.2f}-{trial.predicted.high:.2f}x" if trial.predicted else "no prediction"
    if trial.speedup:
        s = trial.speedup
        lines.append(
            f"  measured {s.estimate:.2f}x  [{s.low:.2f}, {s.high:.2f}]   {predicted}   ({trial.blocks} blocks, {trial.method}, {trial.clock} clock)"
        )
    if trial.perplexity:
        p = trial.perplexity
        costly = ": too much to keep" if p.too_high else ""
        lines.append(f"  perplexity {p.before:.4g} -> {p.after:.4g} ({p.cost_ratio:+.1%}){costly}")
    if trial.held_out_loss:
        loss = trial.held_out_loss
        costly = ": too much to keep" if loss.too_high else ""
        lines.append(f"  held-out loss {loss.before:.4g} -> {loss.after:.4g} ({loss.cost_ratio:+.1%}){costly}")
    if trial.resolution_ratio is not None:
        lines.append(
            f"  blocks of one side differ as well: after so many pairs this machine can tell {trial.resolution_ratio:.1%} from nothing"
        )
    if trial.error:
        lines.append(f"  error: {visible(trial.error)}")
    outcome = {"win": "win", "no_gain": "no gain", "worse": "worse", "undecided": "undecided", None: "not finished"}[trial.verdict]
    lines.append(f"  verdict: {outcome}, {'kept' if trial.kept else 'reverted'}")
    return "\n".join(lines)
