"""Which pairs of words the program can show: a picture with another pair is of an earlier
program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gpuconsole"
GAP = "\0"
"""Stands for a value in an f-string."""
SHORT_BEFORE, SHORT_AFTER = 4, 6
"""Texts of so many words are often shown before, or after, another text."""
DATA = ("*.toml", "*.html", "*.md")


def texts(path: Path) -> Iterator[str]:
    """The texts of a module, each f-string as one. Documentation strings are left out."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    for node in joined:
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
        )
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation | parts
        ):
            yield node.value


class ProgramWords:
    """`words`: all words in the texts of the program. `pairs`: words that are neighbours. `last`,
    `first`: words before and after a value, and at the ends of short texts."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()
        self.last: set[str] = set()
        self.first: set[str] = set()
        for module in PACKAGE.rglob("*.py"):
            for text in texts(module):
                self._add(text)
        for pattern in DATA:
            for file in (*PACKAGE.rglob(pattern), *(ROOT / "scenarios").glob(pattern)):
                self._add(file.read_text(encoding="utf-8"))

    def _add(self, text: str) -> None:
        words = [word.lower() for word in re.findall(rf"[A-Za-z]+|[0-9%]+|{GAP}", text)]
        self.words.update(words)
        self.pairs |= set(pairwise(words))
        self.last |= {word for word, after in pairwise(words) if after == GAP}
        self.first |= {word for before, word in pairwise(words) if before == GAP}
        if len(words) <= SHORT_BEFORE:
            self.last |= set(words[-1:])
        if len(words) <= SHORT_AFTER:
            self.first |= set(words[:1])

    def unknown(self, screen: str) -> list[str]:
        """Neighbouring words of a screen that are no neighbours in a text of the program, each with
        its surroundings. A word that no text has is a value, such as the name of a processor."""
        return [
            f"{word} {after}: {part.strip()}"
            for line in screen.splitlines()
            for part in re.split(r"\s{2,}|[│─╭╮╰╯┌┐└┘├┤]+", line)
            for word, after in pairwise(part.split(" "))
            if re.fullmatch("[A-Za-z]+", word)
            and re.fullmatch("[A-Za-z]+[.,:;]?", after)
            and not self._can_show(word, after.rstrip(".,:;"))
        ]

    def _can_show(self, word: str, after: str) -> bool:
        word, after = word.lower(), after.lower()
        return (
            not {word, after} <= self.words
            or (word, after) in self.pairs
            or (word in self.last and after in self.first)
        )
