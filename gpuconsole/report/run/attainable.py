"""The attainable rate of a run: the share in a few words, the rates as a table, and the waterfall down to the reached rate."""

from __future__ import annotations

from gpuconsole.model.run import Run
from gpuconsole.report import units


def share_text(run: Run) -> str:
    """`41 % of attainable`, for a place next to the throughput; empty where the share is not known (see `why_no_share`).

    More than 100 % is shown as it is: the peaks in use are then too low, and the notes of the full report say so.
    """
    share = run.attainable.share_ratio if run.attainable is not None else None
    return f"{units.precise_percent(share)} of attainable" if share is not None else ""


def why_no_share(run: Run) -> str:
    """The reason why `share_text` is empty; empty where the share is known."""
    if share_text(run):
        return ""
    return run.attainable.reason if run.attainable is not None and run.attainable.reason else "the workload has not reported its facts yet"
