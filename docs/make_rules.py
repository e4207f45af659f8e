"""Writes rules/ID.md, a page for each rule of the diagnosis, and their index, from the files of the
rules:

python docs/make_rules.py [--check]
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

from rule_examples import examples

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.diagnosis.precedence import CAUSES_OF_DATA_WAIT, COVERED, PRECEDENCE, Precedence
from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.diagnosis.rule import Rule
from gpuconsole.engine.catalog import read_scenario, shipped_folder
from gpuconsole.model.finding import HEALTHY
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knob, in_words, show

FOLDER = Path(__file__).with_name("rules")
RULES = {rule.id: rule for rule in all_rules()}
EXAMPLES = examples()
SCENARIOS = [read_scenario(path) for path in sorted(shipped_folder().glob("*.toml"))]
INPUT = tuple(f"input.{cause}" for cause in CAUSES_OF_DATA_WAIT)
FAMILIES = {
    "input": "Loading of data",
    "h2d": "Copies to the GPU",
    "gpu": "Work of the device",
    "host": "The host: cores, Python, logs, checkpoints, evaluation",
    "comm": "Communication between processes",
    "mem": "Memory",
    "hw": "State of the GPU",
    "link": "The link to the GPU",
    "serve": "Model servers",
    "meta": "The measurement",
}
SUBJECTS = {
    "training": "training jobs",
    "serving": "model servers, whoever sends the load",
    "load": "model servers under a load of ours",
    "hardware": "training jobs and model servers on this machine",
}
GUIDES = {
    "load": "a server that runs already, see [Model servers](../serving.md)",
    "training": "a job of your own, see [Your own training job](../own-job.md)",
    "serving": "a server that runs already, see [Model servers](../serving.md)",
}
NO_GPU = " Those runs used CPUs and a simulated GPU, no real GPU."
CONTENTION = "host.cpu_contention"
EFFECTS_TO_AVOID: dict[str, Callable[[Knob], bool]] = {
    "The numbers of a step must stay the same, bit for bit": lambda knob: knob.changes_numerics,
    "What the model learns per step must stay the same": lambda knob: knob.changes_training,
    "The answers of the server must stay the same": lambda knob: knob.changes_output,
}
"""Reasons to leave a change, with the settings that they are about."""
INDEX = """# Rules

Made by `python docs/make_rules.py` from the files in `gpuconsole/diagnosis/rules/`; a test checks
that these pages are current.

Each rule names one cause of lost time or memory. `gpuconsole rules` lists the rules, and
`gpuconsole rules ID` explains one. [Diagnosis](../diagnosis.md) explains how the rules reach a
finding.
"""
SURVEY = (
    '\n"survey" is the project\'s survey of published diagnosis rules, with the number of the'
    " entry.\n"
)
NO_SETTING = (
    "The rule suggests no setting. Where the cure is known, the text of the finding names it.\n"
)
SETTINGS = """The finding may suggest a change of these settings. `Enter` tries a suggestion, and
the trial measures its effect. The column "takes effect" is about the built-in scenarios; for {}.
"""
TABLE = """
| setting | meaning | values | takes effect | also changes |
|---|---|---|---|---|
"""


def page(rule: Rule) -> str:
    file = Path(inspect.getfile(type(rule))).name
    subject = f"{SUBJECTS[rule.subject]}{' on a GPU' if rule.gpu_only else ''}"
    memory = " Its fix frees memory and may cost time." if rule.resource == "memory" else ""
    return f"""# {rule.title}

Rule `{rule.id}`, for {subject}.{memory} In the terminal: `gpuconsole rules {rule.id}`.
If the rule finds nothing, its title is "{rule.clear_title}".

## What it means

{linked(rule.text, but=rule.id)}

## Example

{"".join(example(rule))}
## Evidence

{"".join(evidence(rule))}
## What to do

{"".join(settings(rule))}
## When to ignore it

{"".join(reasons_to_ignore(rule))}{"".join(related(rule))}
---

Made by `python docs/make_rules.py` from `gpuconsole/diagnosis/rules/{file}`;
a test checks that this page is current.
"""


def linked(text: str, but: str = "") -> str:
    """`text` with a link for each id of another rule."""
    return re.sub(
        r"\b[a-z0-9]+\.[a-z0-9_]+\b",
        lambda word: link(word[0]) if word[0] in RULES and word[0] != but else word[0],
        text,
    )


def link(rule_id: str) -> str:
    return f"[`{rule_id}`]({rule_id}.md)"


def evidence(rule: Rule) -> Iterable[str]:
    if rule.thresholds:
        yield "| threshold | value | unit | source of the value |\n|---|---|---|---|\n"
        yield from (
            f"| `{t.name}` | {t.value:g} | {t.unit} | {t.source} |\n" for t in rule.thresholds
        )
    if any("survey " in t.source for t in rule.thresholds):
        yield SURVEY
    yield (
        "\nSignals that the rule reads, some of them only in certain cases:"
        f" {listed(rule.reads)}.\n"
    )
    probes = dict.fromkeys(PROBE_OF[name] for name in rule.reads if name in PROBE_OF)
    if probes:
        yield (
            "\nThese [probes](../diagnosis.md#how-it-works) measure some of these signals:"
            f" {listed(probes)}.\n"
        )


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def settings(rule: Rule) -> Iterable[str]:
    yield (SETTINGS.format(GUIDES[rule.subject]) + TABLE if rule.knobs else NO_SETTING)
    yield from (row(CATALOGUE[name]) for name in rule.knobs)


def row(knob: Knob) -> str:
    values = (
        "; ".join(f"`{show(value)}`: {in_words({knob.name: value})}" for value in knob.examples)
        if knob.words
        else knob.allowed()
    )
    restart = (
        "after a restart; a model server may lower it live"
        if knob.lowered_live
        else "after a restart"
    )
    effects = {
        "the numbers of a step": knob.changes_numerics,
        "what the model learns per step": knob.changes_training,
        "the answers of the server": knob.changes_output,
        "the work of a sample or request": knob.work == "sample",
    }
    also = ", ".join(effect for effect, applies in effects.items() if applies)
    cells = (
        f"`{knob.name}`",
        knob.meaning,
        values,
        "live" if knob.apply == "hot" else restart,
        also or "-",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def example(rule: Rule) -> Iterable[str]:
    """A recorded finding with the source of its figures, then the scenarios that show the
    finding."""
    recorded = EXAMPLES.get(rule.id)
    if recorded is None:
        yield (
            "There is no recorded example: the rule fires in no run of"
            f" `benchmarks/results/`.{NO_GPU * rule.gpu_only}\n"
        )
    else:
        yield (
            f"The finding on the screen of details (key `d`):\n\n```text\n{recorded.text}\n```\n\n"
        )
        yield f"The figures come from {recorded.source}\n"
    if recorded is not None and recorded.trial:
        yield f"\nIn the same run, a trial of the first suggestion {recorded.trial}.\n"
    shown = [scenario for scenario in SCENARIOS if scenario.teaches.rule == rule.id]
    if shown:
        yield "\nThese built-in scenarios show this finding:\n\n"
    for scenario in shown:
        fix = f" What helps: {in_words(scenario.teaches.fix)}." if scenario.teaches.fix else ""
        gpu_fix = (
            f" On a GPU: {in_words(scenario.teaches.gpu_fix)}." if scenario.teaches.gpu_fix else ""
        )
        yield (
            f"- `gpuconsole run {scenario.name}`: {scenario.title}."
            f" {scenario.teaches.see}{fix}{gpu_fix}\n"
        )


def reasons_to_ignore(rule: Rule) -> Iterable[str]:
    """The rule's own reason, or the reason of its kind; then what speaks against its changes, and
    against its figures."""
    if rule.id.endswith(HEALTHY):
        yield "- The finding names no fault: there is nothing to fix.\n"
    elif rule.ignore:
        yield f"- {rule.ignore}\n"
    elif rule.resource == "memory":
        yield "- The run fits into the memory, and you need no larger batch, model or context.\n"
    else:
        yield (
            "- The time that you can recover is not worth the change.\n"
            '- A trial of the change has ended "not faster".\n'
        )
    for effect, changes in EFFECTS_TO_AVOID.items():
        if names := [name for name in rule.knobs if changes(CATALOGUE[name])]:
            yield f"- {effect}: do not change {listed(names)}.\n"
    if (
        rule.subject == "training"
        and rule.resource == "time"
        and not rule.ignore
        and not rule.id.endswith(HEALTHY)
    ):
        yield (
            f"- {link(CONTENTION)} fires too: other programs use the cores, and all times are less"
            " certain. Measure again on a quiet machine.\n"
        )


def related(rule: Rule) -> Iterable[str]:
    lines = []
    yields_to = [entry for entry in PRECEDENCE if entry.loser == rule.id]
    for (why, condition), entries in groupby(yields_to, lambda entry: (entry.why, unless(entry))):
        winners = [entry.winner for entry in entries]
        links = ", ".join(map(link, winners))
        which, covered = (links, winners[0]) if len(winners) == 1 else (f"one of {links}", "…")
        lines.append(
            f'- If {which} applies too{condition}, this rule is clear ("{COVERED} {covered}"):'
            f" {why}.\n"
        )
    covers = [entry for entry in PRECEDENCE if entry.winner == rule.id]
    lines += [
        f"- If this rule applies{unless(entry)}, {link(entry.loser)} is clear.\n"
        for entry in covers
    ]
    if rule.id in INPUT:
        order = ", ".join(link(cause) if cause != rule.id else f"`{cause}`" for cause in INPUT)
        lines.append(
            "- A wait for data has one cause: the first of these rules that applies names it:"
            f" {order}.\n"
        )
    if lines:
        yield "\n## Related rules\n\n"
        yield from lines


def unless(entry: Precedence) -> str:
    return f" and `{entry.unless}` is 0" if entry.unless else ""


def index() -> str:
    parts = [INDEX]
    families = {
        family: list(rules)
        for family, rules in groupby(RULES.values(), lambda rule: rule.id.partition(".")[0])
    }
    for family in sorted(families, key=list(FAMILIES).index):
        rows = "".join(f"| {link(rule.id)} | {rule.title} |\n" for rule in families[family])
        parts.append(f"\n## {FAMILIES[family]}\n\n| rule | finding |\n|---|---|\n{rows}")
    return "".join(parts)


def main() -> int:
    pages = {"index.md": index(), **{f"{rule.id}.md": page(rule) for rule in RULES.values()}}
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for name in present.keys() - pages.keys():
            (FOLDER / name).unlink()
        for name, text in pages.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    stale = sorted(
        name for name in pages.keys() | present.keys() if pages.get(name) != present.get(name)
    )
    if stale:
        print(f"{', '.join(stale)} out of date: python docs/make_rules.py", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
