"""An example for each rule: a finding of a recorded run, as the screen shows it. The figures come
from the files in benchmarks/results alone.

A run of DiagBench has kept its signals, so the rules are evaluated again: the text is that of the
present rules. A run of findings-*.json has kept its findings. Where several runs show a rule, a run
whose built-in fault the rule names comes first, then one in which a trial of the fix was decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpuconsole.diagnosis.claims import of_whole_step
from gpuconsole.diagnosis.engine import evaluate, rule_ids
from gpuconsole.diagnosis.rule import Case
from gpuconsole.engine.catalog import read_scenario, shipped_folder
from gpuconsole.model import units
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import Run
from gpuconsole.report.parts import lay_out
from gpuconsole.report.run.diagnosis import finding_report

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
SCENARIOS = {
    scenario.name: scenario
    for scenario in map(read_scenario, sorted(shipped_folder().glob("*.toml")))
}
WIDTH = 120
UNITS = {
    "_bytes_per_s": "B/s", "_samples_per_s": "samples/s", "_s": "s", "_bytes": "B",
    "_ratio": "ratio", "_speedup": "x", "_spread": "x", "cores": "cores", "threads": "threads",
    "_w": "W", "temperature_c": "°C",
}  # fmt: skip
"""The unit of a signal by the end of its name. Rows of DiagBench keep the value alone."""
RATIOS_AS_FACTORS = ("comm.straggler_ratio", "ranks.busy_ratio")
LARGE_CARD_BYTES = 80e9
"""Of the card that the simulated runs had: the scenarios take its values."""
CONTENTION = "host.cpu_contention"
VERDICTS = {"win": "faster", "no_gain": "not faster", "worse": "slower", "undecided": "undecided"}


class Example(NamedTuple):
    """`source`: where the figures come from, the end of a sentence. `trial`: what a trial of the
    first suggestion measured in the same run, or empty."""

    finding: Finding
    run: Run
    source: str
    rank: tuple[int, ...]
    trial: str = ""

    @property
    def text(self) -> str:
        """The finding as on the screen of details."""
        rows = lay_out(finding_report(1, self.finding, self.run), WIDTH)
        return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)


def examples() -> dict[str, Example]:
    """The best example of each rule that has one, by rule."""
    best: dict[str, Example] = {}
    for example in (*_of_diagbench(), *_of_runs(), *_of_simulated()):
        rule = example.finding.rule
        if rule not in best or example.rank < best[rule].rank:
            best[rule] = example
    return best


def _newest(pattern: str) -> tuple[str, Any]:
    """The name and the content of the last of the files, by date."""
    path = max(RESULTS.glob(pattern))
    return path.name, msgspec.json.decode(path.read_bytes())


def _of_diagbench() -> Iterable[Example]:
    name, content = _newest("diagbench-reporting-[0-9]*.json")
    machine = content["machine"]
    where = (
        f"on a CPU with {machine['cores']} cores, not on a GPU, on {machine['date']} (file"
        f" `benchmarks/results/{name}`)"
    )
    for row in content["rows"]:
        yield from _of_row(row, "cpu", where, 0)


def _of_simulated() -> Iterable[Example]:
    name, content = _newest("gpu-day-simulated-[0-9]*.json")
    machine = content["machine"]
    where = (
        f"on a **{machine['gpus'][0]}**, not on a real GPU, on {machine['date']} (file"
        f" `benchmarks/results/{name}`)"
    )
    for check in content["checks"].values():
        if row := (check.get("data") or {}).get("row"):
            yield from _of_row(row, "gpu", where, 2)


def _of_row(row: dict[str, Any], scale: str, where: str, tier: int) -> Iterable[Example]:
    """The findings of a run of DiagBench. A finding counts where the rule fired in the run itself,
    too."""
    scenario = SCENARIOS[row["scenario"]]
    knobs: Knobs = {
        **scenario.knobs_for(scale, LARGE_CARD_BYTES if scale == "gpu" else 0),
        **row["sets"],
    }
    mark = f"DiagBench {row['case']}, seed {row['seed']}"
    signals = {
        name: Signal(value, _unit(name), mark) for name, value in row.get("signals", {}).items()
    }
    run = Run(
        mark,
        scenario.name,
        scenario.workload.name,
        knobs,
        "gpu:0" if scale == "gpu" else "cpu",
        "finished",
        signals=signals,
    )
    ids = rule_ids()  # a result of an earlier version has the ids of that time
    fired = [ids.get(name, name) for name in (*row.get("fired", ()), *row.get("notes", ()))]
    truth = [ids.get(name, name) for name in row["truth"]]
    for finding in evaluate(Case.of(run, signals)):
        if finding.state != "fires" or finding.rule not in fired:
            continue
        named, first = finding.rule in truth, fired[0] == finding.rule
        trial = _trial(row, finding) if first else ""
        source = f"{mark} (case `{row['name']}`, scenario `{scenario.name}`): a run {where}."
        rank = (
            tier if named else tier + 1,
            not first,
            "x [" not in trial or "faster" not in trial,
            int(row["seed"]),
        )
        yield Example(finding, run, source, rank, trial)


def _of_runs() -> Iterable[Example]:
    """Runs of scenarios that no case of DiagBench shows."""
    name, content = _newest("findings-[0-9]*.json")
    machine = content["machine"]
    for run in msgspec.convert(content["runs"], list[Run]):
        beside = " that other programs used too" * any(
            finding.rule == CONTENTION for finding in run.findings
        )
        where = (
            f"on a CPU with {machine['cores']} cores{beside}, not on a GPU, on {machine['date']}"
            f" (file `benchmarks/results/{name}`)"
        )
        taught = SCENARIOS[run.scenario].teaches.rule
        for position, finding in enumerate(
            finding for finding in run.findings if finding.state == "fires"
        ):
            source = f"`gpuconsole run {run.scenario}`: a run {where}."
            # in this file, shares are of a step without its wait for a core
            shown = of_whole_step(finding, Case.of(run, run.signals))
            yield Example(shown, run, source, (1 if finding.rule == taught else 2, position))


def _trial(row: dict[str, Any], finding: Finding) -> str:
    """`(num_workers 4) measured 3.94x [3.80, 4.08]: faster`; empty where the first suggestion had
    no trial."""
    top = row.get("top") or {}
    speedup = top.get("speedup")
    if not speedup or not finding.suggestions or top["changes"] != finding.suggestions[0].changes:
        return ""
    measured = units.measured(speedup["estimate"], speedup["low"], speedup["high"])
    return (
        f"({describe_changes(top['changes'])}) measured {measured}:"
        f" {VERDICTS.get(top['verdict'], top['verdict'])}"
    )


def _unit(signal: str) -> str:
    if signal in RATIOS_AS_FACTORS:
        return "x"
    return next((unit for ending, unit in UNITS.items() if signal.endswith(ending)), "")
