"""From rows to figures. A tool without a word for a cause is not wrong about it: such runs are
counted separately."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from benchmarks.diagbench.peers.peer import LEFT_OUT, Peer
from benchmarks.diagbench.peers.run import PeerRow
from benchmarks.diagbench.peers.verdict import Verdict, judge
from benchmarks.diagbench.score import wilson

Outcome = Literal["right", "wrong", "silent", "not applicable"]
"""`silent`: it said that all is well, that it cannot tell, or nothing at all."""


def verdict_of(row: PeerRow, peer: Peer) -> Verdict:
    return Verdict(()) if row.error else judge(row.said, peer.meanings)


def cause_outcome(row: PeerRow, peer: Peer) -> Outcome:
    """Whether the tool named the cause of a faulty run."""
    if not set(row.truth) & peer.causes():
        return "not applicable"
    verdict = verdict_of(row, peer)
    if set(verdict.causes) & set(row.truth):
        return "right"
    return "wrong" if verdict.blames else "silent"


def family_outcome(row: PeerRow, peer: Peer) -> Outcome:
    """Whether the tool blamed the right part of the step in a faulty run."""
    if row.family not in peer.families():
        return "not applicable"
    verdict = verdict_of(row, peer)
    if row.family in verdict.families:
        return "right"
    return "wrong" if verdict.blames else "silent"


def report(rows: Sequence[PeerRow], peer: Peer) -> dict[str, Any]:
    """The figures of one tool's rows. A faulty run without a verdict counts as missed; a healthy
    run without a verdict does not count."""
    faulty = [row for row in rows if row.truth]
    healthy = [row for row in rows if not row.truth and not row.error]
    causes = Counter(cause_outcome(row, peer) for row in faulty)
    families = Counter(family_outcome(row, peer) for row in faulty)
    false = sum(verdict_of(row, peer).blames for row in healthy)
    return {
        "tool": peer.name,
        "versions": sorted({row.version for row in rows}),
        **_accuracy("cause", causes),
        **_accuracy("family", families),
        "misled": sum(_misled(row, peer) for row in faulty),
        "false_positive": _share(false, len(healthy)),
        "false_positive_low": round(wilson(false, len(healthy))[0], 4),
        "false_positive_high": round(wilson(false, len(healthy))[1], 4),
        "healthy_runs": len(healthy),
        "faulty_runs": len(faulty),
        "failed_runs": sum(bool(row.error) for row in rows),
        "seconds_median": statistics.median(row.elapsed_s for row in rows) if rows else None,
        "seconds_longest": max((row.elapsed_s for row in rows), default=None),
        "unknown_words": sorted({word for row in rows for word in verdict_of(row, peer).unknown}),
        "left_out": list(LEFT_OUT),
    }


def _misled(row: PeerRow, peer: Peer) -> bool:
    """Whether the tool blamed another part of the step."""
    verdict = verdict_of(row, peer)
    return verdict.blames and row.family not in verdict.families


def _accuracy(level: str, outcomes: Counter[Outcome]) -> dict[str, Any]:
    """The share of right verdicts among the runs that the tool has a word for, with Wilson's
    interval, and among all runs."""
    right, everything = outcomes["right"], outcomes.total()
    could = everything - outcomes["not applicable"]
    low, high = wilson(right, could)
    return {
        level: _share(right, could),
        f"{level}_low": round(low, 4),
        f"{level}_high": round(high, 4),
        f"{level}_of_all": _share(right, everything),
        f"{level}_runs": could,
        f"{level}_right": right,
        f"{level}_wrong": outcomes["wrong"],
        f"{level}_silent": outcomes["silent"],
        f"{level}_not_applicable": outcomes["not applicable"],
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def one_line(row: PeerRow, peer: Peer) -> str:
    """One run in one line."""
    if row.truth:
        mark = f"cause {cause_outcome(row, peer)}, family {family_outcome(row, peer)}"
    else:
        mark = (
            "no verdict"
            if row.error
            else "false positive"
            if verdict_of(row, peer).blames
            else "right"
        )
    words = (
        row.error or ", ".join(f"{one.word} {one.detail}".strip() for one in row.said) or "nothing"
    )
    return f"{row.case:<4} {row.name:<30} seed {row.seed} {row.elapsed_s:6.1f} s  {mark}: {words}"


def page(rows: Sequence[PeerRow], peer: Peer, figures: dict[str, Any]) -> str:
    """A table of the cases, and the figures below it."""
    by_case: dict[str, list[PeerRow]] = defaultdict(list)
    for row in rows:
        by_case[f"{row.case:<4} {row.name}"].append(row)
    lines = [f"{'case':<36} {'cause':<16} {'family':<16} first words"]
    for case, runs in by_case.items():
        if runs[0].truth:
            cause, family = (
                _counted([tell(row, peer) for row in runs])
                for tell in (cause_outcome, family_outcome)
            )
        else:
            clean = sum(not row.error and not verdict_of(row, peer).blames for row in runs)
            cause, family = f"{clean}/{len(runs)} clean", ""
        words = " | ".join(
            row.said[0].word if row.said else row.error[:40] or "nothing" for row in runs
        )
        lines.append(f"{case:<36} {cause:<16} {family:<16} {words}")
    return "\n".join([*lines, "", *(f"{name:<22} {value}" for name, value in figures.items())])


def _counted(outcomes: Sequence[Outcome]) -> str:
    """Whether a tool has a word for a cause is the same in all runs of a case."""
    return (
        "not applicable"
        if "not applicable" in outcomes
        else f"{outcomes.count('right')}/{len(outcomes)}"
    )
