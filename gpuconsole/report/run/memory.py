"""The explanation of an allocation for which the GPU of a job had no memory: what was asked for, who owned how much, what would make room."""

from __future__ import annotations

from gpuconsole.diagnosis.models.out_of_memory import beside_bytes, headline
from gpuconsole.model import units
from gpuconsole.model.memory import Fit, MemoryFailure
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, labelled, text

MARGIN = 14
"""Cells before the text of a labelled line."""

ROUNDING = 32 * 2.0**20
"""The figures of torch's message have two digits after the point: of GiB, four of them are 20 MiB off at most."""


def memory_report(run: Run) -> Report:
    """Each failed allocation of a run, the oldest first; of those that the program caught, the last one."""
    report: Report = []
    caught = [failure for failure in run.memory_failures if failure.caught]
    if len(caught) > 1:
        report.append(labelled("memory", f"the job ran out of GPU memory {len(caught)} times and went on; the last time:"))
    for failure in run.memory_failures:
        if not failure.caught or failure is caught[-1]:
            report += failure_report(failure)
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
        report.append(labelled("owners", f"of the card's {_size(failure.total_bytes)} at that moment"))
        report.append(Table((Column(""), Column("", ">"), Column("", ">")), rows, indent=MARGIN, heads=False))
    if failure.fits:
        report.append(labelled("would fit", "by the memory model; each line alone"))
        report += [text(line, "", MARGIN) for line in map(fit_text, failure.fits)]
    elif failure.limit_bytes is None:
        report.append(labelled("would fit", f"{units.NA}: the error does not say how much memory is used", "dim"))
    return report


def owners(failure: MemoryFailure) -> list[list[Segment]]:
    """Title, bytes and share of the card, for each owner with a known size."""
    beside, context = beside_bytes(failure), failure.context_bytes
    others = max(0.0, beside - context) if beside is not None and context is not None else None
    if others is not None and others < ROUNDING and not failure.processes:
        context, others = beside, 0.0
    sizes = [
        ("parameters", failure.parameters_bytes),
        ("gradients", failure.gradients_bytes),
        (f"optimizer states{f' ({failure.optimizer})' if failure.optimizer else ''}", failure.optimizer_bytes),
        ("activations and other tensors", failure.activations_bytes),
        ("cache: reserved, used by no tensor", failure.unallocated_bytes),
        ("CUDA context and libraries", context),
        ("other processes", others) if others is not None else ("CUDA context and other processes", beside),
        ("free", failure.free_bytes),
    ]
    total = failure.total_bytes
    return [
        [(visible(title), ""), (_size(size), ""), (units.percent(size / total).strip() if total else "", "dim")]
        for title, size in sizes
        if size is not None
    ]


def fit_text(fit: Fit) -> str:
    """`batch size 310, not 512: activations need 12 MiB for each sample ...; frees 4.1 GiB: enough`."""
    freed = f"; frees {_size(fit.frees_bytes)}" if fit.frees_bytes else ""
    enough = {True: ": enough", False: ": not enough", None: ""}[fit.enough] if freed else ""
    return visible(f"{fit.change}: {fit.reason}{freed}{enough}")


def _size(value: float | None) -> str:
    return units.size_bytes(value).strip()
