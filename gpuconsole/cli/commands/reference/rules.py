"""`gpuconsole rules`."""

from __future__ import annotations

import argparse
import re
import textwrap

from gpuconsole.cli.exits import OK
from gpuconsole.cli.options import JSON, Option, UsageError
from gpuconsole.cli.output import to_json
from gpuconsole.diagnosis.engine import all_rules, rule_ids
from gpuconsole.diagnosis.precedence import PRECEDENCE
from gpuconsole.diagnosis.rule import Rule
from gpuconsole.model.knobs.catalogue import nearest

HELP = "list the rules of the diagnosis, or explain one rule"
DESCRIPTION = (
    "List the rules of the diagnosis, or explain one rule: meaning, thresholds with their sources,"
    " signals, settings."
)
EXAMPLES = """examples:
  gpuconsole rules
  gpuconsole rules input.slow_storage
  gpuconsole rules --json
"""
OPTIONS = (
    Option("id", "the rule to explain (default: list all)", "ID", nargs="?", completes="rule"),
    JSON._replace(help="the declarations of the rules as JSON"),
)


def run(args: argparse.Namespace) -> int:
    rules, ids = {rule.id: rule for rule in all_rules()}, rule_ids()
    if args.id and args.id not in ids:
        raise UsageError(
            f"there is no rule {args.id!r}{nearest(args.id, rules)}; there are:"
            f" {', '.join(sorted(rules))}"
        )
    chosen = [rules[ids[args.id]]] if args.id else list(rules.values())
    if args.json:
        print(to_json([as_data(rule) for rule in chosen]))
    elif args.id:
        print(explain(chosen[0]))
    else:
        for rule in chosen:
            print(f"{rule.id:<28} {rule.title}")
    return OK


def as_data(rule: Rule) -> dict[str, object]:
    """The rule's declaration and the signals that it reads, ready for JSON."""
    thresholds = [
        {"name": t.name, "value": t.value, "unit": t.unit, "source": t.source}
        for t in rule.thresholds
    ]
    return {
        "id": rule.id,
        "title": rule.title,
        "clear_title": rule.clear_title,
        "signals": rule.reads,
        "knobs": rule.knobs,
        "thresholds": thresholds,
        "text": rule.text,
    }


def explain(rule: Rule) -> str:
    """The text of `gpuconsole rules ID`."""
    # a line that ends with a sentence ends a paragraph
    paragraphs = (textwrap.fill(part, 100) for part in re.split(r"(?<=\.)\n", rule.text))
    lines = [f"{rule.id}: {rule.title}", "", *paragraphs, "", "Thresholds:"]
    lines += [f"  {t.name} {t.value:g} {t.unit}: {t.source}" for t in rule.thresholds]
    if any("survey " in t.source for t in rule.thresholds):
        lines.append(
            "  (survey: the number of the entry in the project's survey of published diagnosis"
            " rules)"
        )
    lines += [
        "",
        "Signals that the rule reads, some of them only in certain cases:",
        _wrapped(", ".join(rule.reads)),
    ]
    if rule.knobs:
        lines += ["", "Settings that it may suggest to change: " + ", ".join(rule.knobs)]
    yields = [f"  {entry.winner}: {entry.why}" for entry in PRECEDENCE if entry.loser == rule.id]
    if yields:
        lines += ["", "Yields to:", *yields]
    if rule.ignore:
        lines += ["", f"When to ignore it: {rule.ignore}"]
    lines += ["", f"If the rule finds nothing: {rule.clear_title}"]
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, 120, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
