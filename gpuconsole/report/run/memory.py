"""The explanation of an allocation for which the GPU of a job had no memory: what was asked for,
who owned how much, what would make room."""

from __future__ import annotations

from gpuconsole.diagnosis.models.out_of_memory import headline, other_bytes
from gpuconsole.model import units
from gpuconsole.model.memory import CARD, KEPT, MAX_FAILURES, OWNERS, Fit, MemoryFailure
from gpuconsole.model.run import Run, SeriesData
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, labelled, text

MARGIN = 14
"""Cells before the text of a labelled line."""

ROUNDING = 32 * 2.0**20
"""The figures of torch's message have two digits after the point: of GiB, four of them are 20 MiB
off at most."""


def memory_report(run: Run) -> Report:
    """Each failed allocation of a run, the oldest first; of those that the program caught, the last
    one. Of several ranks that failed, the first is explained, and the others have one line each."""
    report: Report = []
    caught = [failure for failure in run.memory_failures if failure.caught]
    if len(caught) > 1:
        times = f"{len(caught)} times" + (" or more" if len(caught) == MAX_FAILURES else "")
        report.append(
            labelled("memory", f"the job ran out of GPU memory {times} and went on; the last time:")
        )
    explained = False
    for failure in run.memory_failures:
        if not failure.caught or failure is caught[-1]:
            report += failure_report(failure)[: 1 if explained and not failure.caught else None]
            explained = explained or not failure.caught
    return [*report, *lines_report(run)]


def owner_series(run: Run) -> dict[str, SeriesData]:
    """The series of the owners of GPU memory by name, of those that were measured, with KEPT and
    CARD."""
    return {
        owner.name: data
        for owner in (*OWNERS.values(), KEPT, CARD)
        for key, data in run.series.items()
        if key.startswith(f"{owner.metric}{{") and data.t
    }


def owners_report(run: Run) -> Report:
    """The owners of GPU memory at the largest allocation of a job; empty where they were not
    measured."""
    series = owner_series(run)
    if not series:
        return []
    newest = max(data.t[-1] for data in series.values())
    parts = [
        f"{owner.title} {_size(series[name].v[-1])}"
        for name, owner in OWNERS.items()
        if name in series and series[name].t[-1] == newest
    ]
    card = f" of {_size(series[CARD.name].v[-1])}" if CARD.name in series else ""
    report: Report = [labelled("GPU memory", f"{', '.join(parts)}{card}")]
    if KEPT.name in series and (grown := series[KEPT.name].v[-1] - series[KEPT.name].v[0]) > 0:
        values = series[KEPT.name].v
        report.append(
            text(
                (
                    f"{KEPT.title}: {_size(values[0])} first, {_size(values[-1])} last"
                    f" (+{_size(grown)})"
                ),
                "",
                MARGIN,
            )
        )
    return report


def failure_report(failure: MemoryFailure) -> Report:
    """One failed allocation."""
    rank = f"rank {failure.rank}: " if failure.rank else ""
    went_on = "; the job caught the error and went on" if failure.caught else ""
    batch = f" with batch size {failure.batch_size}" if failure.batch_size else ""
    when = f"; finished steps before: {failure.steps}"
    line = f"{rank}{headline(failure)}{batch}{when}{went_on}"
    report: Report = [labelled("memory", visible(line), "" if failure.caught else "alert")]
    if failure.within:
        report.append(text(f"within {failure.within}", "dim", MARGIN))
    if rows := owners(failure):
        report.append(
            labelled("owners", f"of the card's {_size(failure.total_bytes)} at that moment")
        )
        report.append(
            Table((Column(""), Column("", ">"), Column("", ">")), rows, indent=MARGIN, heads=False)
        )
    if failure.fits:
        report.append(labelled("would fit", "by the memory model; each line alone"))
        report += [text(line, "", MARGIN) for line in map(fit_text, failure.fits)]
    elif failure.limit_bytes is None:
        report.append(
            labelled(
                "would fit", f"{units.NA}: the error does not say how much memory is used", "dim"
            )
        )
    return report


def lines_report(run: Run) -> Report:
    """The lines of the program that held GPU memory, where the user asked for them (--memory)."""
    report: Report = []
    reasons = dict.fromkeys(held.reason for held in run.memory_lines if held.reason)
    report += [labelled("lines", visible(f"{units.NA}: {reason}"), "dim") for reason in reasons]
    for held in run.memory_lines:
        if held.reason:
            continue
        when = (
            "when the allocation failed"
            if held.failed
            else "at the largest allocation that torch's history has"
        )
        rank = f"rank {held.rank}, " if held.rank else ""
        report.append(
            labelled("lines", visible(f"{rank}{held.device}: {_size(held.total_bytes)} {when}"))
        )
        rows: list[list[Segment]] = [
            [(visible(line.place), ""), (_size(line.bytes), ""), (f"{line.blocks} blocks", "dim")]
            for line in held.lines
        ]
        report.append(
            Table((Column(""), Column("", ">"), Column("", ">")), rows, indent=MARGIN, heads=False)
        )
    return report


def owners(failure: MemoryFailure) -> list[list[Segment]]:
    """Title, bytes and share of the card, for each owner with a known size."""
    beside, context = other_bytes(failure), failure.context_bytes
    others = max(0.0, beside - context) if beside is not None and context is not None else None
    if others is not None and others < ROUNDING and not failure.processes:
        context, others = beside, 0.0
    sizes = [
        ("parameters", failure.parameters_bytes),
        ("gradients", failure.gradients_bytes),
        (
            f"optimizer states{f' ({failure.optimizer})' if failure.optimizer else ''}",
            failure.optimizer_bytes,
        ),
        ("activations and other tensors", failure.activations_bytes),
        ("cache: reserved, used by no tensor", failure.unallocated_bytes),
        ("CUDA context and libraries", context),
        ("other processes", others)
        if others is not None
        else ("CUDA context and other processes", beside),
        ("free", failure.free_bytes),
    ]
    total = failure.total_bytes
    return [
        [
            (visible(title), ""),
            (_size(size), ""),
            (units.percent(size / total).strip() if total else "", "dim"),
        ]
        for title, size in sizes
        if size is not None
    ]


def fit_text(fit: Fit) -> str:
    """`batch size 310, not 512: activations need 12 MiB for each sample ...; frees 4.1 GiB:
    enough`."""
    freed = f"; frees {_size(fit.frees_bytes)}" if fit.frees_bytes else ""
    enough = {True: ": enough", False: ": not enough", None: ""}[fit.enough] if freed else ""
    return visible(f"{fit.change}: {fit.reason}{freed}{enough}")


def _size(value: float | None) -> str:
    return units.size_bytes(value).strip()
