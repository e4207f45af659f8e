"""The help of the program and of each command: as wide as the terminal, options in groups, examples last."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable

WIDEST = 110
REMARK = re.compile(r"(\s+\S.*?)\s{2,}(\S.*)")
"""An example and the remark after it."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs. Lines that begin with a blank stay lines: examples and tables."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)
        self._width = min(self._width, WIDEST)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(fitted(text, width))


def fitted(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` cells, if its words allow that."""
    found: list[str] = []
    paragraph: list[str] = []

    def end_paragraph() -> None:
        found.extend(textwrap.wrap(" ".join(paragraph), width, break_long_words=False, break_on_hyphens=False))
        paragraph.clear()

    for line in text.strip("\n").splitlines():
        if line and not line.startswith(" "):
            paragraph.append(line)
            continue
        end_paragraph()
        found += example(line, width)
    end_paragraph()
    return found


def example(line: str, width: int) -> list[str]:
    """A line that begins with a blank. If it is too long, its remark stands below it, and a long command continues after a backslash."""
    if len(line) <= width:
        return [line]
    parts = REMARK.fullmatch(line)
    command, remark = (parts[1], parts[2]) if parts else (line, "")
    indent = " " * (len(command) - len(command.lstrip()))
    rows = textwrap.wrap(command.strip(), width - len(indent) - 6, break_long_words=False, break_on_hyphens=False)
    rows = [f"{indent}{'    ' if number else ''}{row}" for number, row in enumerate(rows)]
    rows = [f"{row} \\" for row in rows[:-1]] + rows[-1:]
    below = f"{indent}      "
    return rows + textwrap.wrap(remark, width, initial_indent=below, subsequent_indent=below, break_long_words=False)


def usage(parser: argparse.ArgumentParser, takes_job: bool) -> str:
    """The usage of a command: its arguments, without the names of all options."""
    words = [
        f"[{one.metavar}]" if one.nargs == "?" and not takes_job else str(one.metavar or one.dest)
        for one in parser._get_positional_actions()
    ]
    first = " ".join([parser.prog, *words, "[options]"])
    return f"{first}\n       {parser.prog} [options] -- COMMAND ARGS..." if takes_job else first


def table(groups: Iterable[tuple[str, list[tuple[str, str]]]]) -> str:
    """The commands with one line each, by group."""
    blocks = ["\n".join([f"{title}:", *(f"  {name:<18} {words}" for name, words in rows)]) for title, rows in groups if rows]
    return "\n\n".join(blocks)
