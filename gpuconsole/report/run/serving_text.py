"""A serving run's latencies as plain text, each with its formula."""

from __future__ import annotations

from gpuconsole.model.run import Distribution, Run
from gpuconsole.model.serving import FORMULAS
from gpuconsole.model.text import visible

NAMES = {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "E2E", "chunk_gap_s": "chunk gap", "client_queue_s": "client queue"}


def serving_lines(run: Run) -> list[str]:
    """Nothing for a run that does not serve."""
    summary = run.summary
    if not run.serves:
        return []
    lines = []
    if summary.requests_per_s is not None:
        lines.append(f"requests     {summary.requests_per_s.mean:.2f}/s   {summary.requests} answered, {summary.failed_requests} failed")
    lines += [f"  {count} x {visible(cause)}" for cause, count in summary.failures.items()]
    if summary.goodput_per_s is not None:
        lines.append(f"goodput      {summary.goodput_per_s:.2f} requests/s within the objective")
    for field, name in NAMES.items():
        found: Distribution | None = getattr(summary, field)
        if found is not None:
            lines.append(f"{name:12} {_percentiles(found)}   {FORMULAS[field].partition(': ')[2]}")
    return lines


def _percentiles(found: Distribution) -> str:
    shares = (("mean", found.mean), ("p50", found.p50), ("p90", found.p90), ("p95", found.p95), ("p99", found.p99))
    return "  ".join(f"{name} {value * 1e3:8.1f}" for name, value in shares if value is not None) + " ms"
