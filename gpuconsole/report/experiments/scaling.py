"""The table of a sweep over numbers of processes: throughput as a share of N times the throughput of one process."""

from __future__ import annotations

from gpuconsole.diagnosis.models.collective import weak_scaling
from gpuconsole.model.run import Distribution, Run
from gpuconsole.report import units
from gpuconsole.report.parts import Column, Table


def scaling_table(runs: list[Run]) -> Table:
    """A row for each number of processes."""
    heads = ("nproc", "throughput", "per process", "efficiency", "step p50", "comm")
    one = next((run.throughput[0] for run in runs if run.knobs["nproc"] == 1), None)
    return Table([Column(head, ">") for head in heads], [[(words, "") for words in _cells(run, one)] for run in runs])


def _cells(run: Run, one: Distribution | None) -> list[str]:
    rate, unit = run.throughput
    nproc = int(run.knobs["nproc"])
    if rate is None:
        return [str(nproc), run.state, "", "", "", ""]
    step = run.summary.step_time_s
    exposed = run.summary.phases_ratio.get("comm", 0.0)
    # The collectives of FSDP2 and of tensor parallelism run inside forward and backward: their time is not measured.
    comm = exposed if nproc == 1 or exposed > 0 else None
    return [
        str(nproc),
        units.quantity(rate.p50, unit),
        units.rate(rate.p50 / nproc, 0),
        units.percent(weak_scaling(one.p50, rate.p50, nproc) if one else None).strip(),
        units.duration(step.p50 if step else None).strip(),
        units.percent(comm).strip(),
    ]
