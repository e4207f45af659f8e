"""The names of classes and constants: one name stands for one thing, and a limit is called MAX_ or
MIN_."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "gpuconsole").rglob("*.py"))
WORDY = re.compile(r"_?(MOST|LEAST|LONGEST|SHORTEST|ENOUGH)(_|$)")


def test_each_class_name_stands_for_one_class() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in PACKAGE:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def assigned(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_a_limit_is_called_max_or_min() -> None:
    wordy = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in PACKAGE
        for name in assigned(path)
        if WORDY.match(name)
    ]
    assert wordy == []
