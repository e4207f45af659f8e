"""The figures that several reports of a run share, each as text."""

from __future__ import annotations

from gpuconsole.model.run import Run
from gpuconsole.report import units


def throughput(run: Run) -> str:
    """`18 240 ± 210 tokens/s`."""
    rate, unit = run.throughput
    return f"{units.spread(rate.mean, rate.std if rate.n > 1 else None, 0)} {unit}" if rate else units.NA


def work(run: Run) -> str:
    """`127 requests`, `1 steady step`."""
    count, word = (run.summary.requests, "request") if run.serves else (run.summary.steps, "steady step")
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def step_time(run: Run) -> str:
    """The mean: `440 ms`."""
    found = run.summary.step_time_s
    return units.duration(found.mean).strip() if found else units.NA


def utilization(run: Run, name: str, with_peak: bool = True) -> str:
    """`MFU 31 % of datasheet bf16`; empty where the figure is not known. `name`: MFU or MBU."""
    summary = run.summary
    ratio, source = (summary.mfu_ratio, summary.mfu_peak_source) if name == "MFU" else (summary.mbu_ratio, summary.mbu_peak_source)
    if ratio is None:
        return ""
    return f"{name} {units.precise_percent(ratio)}" + (f" of {source}" if with_peak and source else "")


def costs(tokens_per_j: float | None, cost_per_million_tokens: float | None) -> list[str]:
    """`41.4 tokens/J` and `0.21 per million tokens`, as far as each is known."""
    found = [f"{units.plain(tokens_per_j)} tokens/J"] if tokens_per_j is not None else []
    return found + ([f"cost {units.plain(cost_per_million_tokens)} per million tokens"] if cost_per_million_tokens is not None else [])
