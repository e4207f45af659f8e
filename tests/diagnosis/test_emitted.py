"""Every signal that a rule or a model reads has a producer.

The names that producers emit are read from their source: keys of dictionaries, targets of item
assignments, and names of constants in the packages of `PRODUCERS`. An f-string emits the names that
fit it; where it begins with a variable, `FIRST` has what can stand there. The names that rules read
are those of `reads`, which test_reads.py compares with recorded reads. The names that models read
are the arguments of their reads in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import gpuconsole
from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.model.run import PHASES

ROOT = Path(gpuconsole.__file__).parent
PRODUCERS = ("agent", "workloads", "session", "telemetry", "diagnosis/signals", "model/profile.py")
NAME = re.compile(r"[a-z][\w.]*")
FIRST = f"({'|'.join((*PHASES, 'runq', 'host.memory', 'loader.memory'))})"
"""What an f-string can begin with whose first part is a variable."""


def patterns(node: ast.expr | None) -> Iterator[str]:
    """The names that an expression can have, as regular expressions."""
    match node:
        case ast.Constant(value=str(name)) if NAME.fullmatch(name):
            yield re.escape(name)
        case ast.JoinedStr(values=parts):
            first, *rest = (
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else ""
                for part in parts
            )
            yield (first or FIRST) + "".join(part or r"\w+" for part in rest)
        case ast.Tuple(elts=entries):
            for entry in entries:
                yield from patterns(entry)
        case ast.IfExp(body=one, orelse=other):
            yield from patterns(one)
            yield from patterns(other)


def emitted() -> re.Pattern[str]:
    """The names of all signals that producers can emit."""
    found = set[str]()
    for package in PRODUCERS:
        place = ROOT / package
        for file in place.rglob("*.py") if place.is_dir() else (place,):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Dict(keys=keys):
                        found.update(name for key in keys for name in patterns(key))
                    case ast.DictComp(key=key):
                        found.update(patterns(key))
                    case ast.Subscript(slice=key, ctx=ast.Store()):
                        found.update(patterns(key))
                    case ast.Assign(targets=[ast.Name(id=_) | ast.Tuple()], value=value):
                        found.update(patterns(value))
    return re.compile("|".join(sorted(found)))


def read_by_models() -> dict[str, str]:
    """The names that models read, with the file and line of a read."""
    found = dict[str, str]()
    for file in sorted((ROOT / "diagnosis" / "models").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            name: ast.expr | None = None
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="value", value=ast.Name(id="inputs")), args=[name]
                ):
                    pass
                case ast.Call(func=ast.Attribute(attr="with_measurement"), args=[_, name, _]):
                    pass
                case (
                    ast.Call(func=ast.Attribute(attr="get", value=of), args=[name, *_])
                    | ast.Subscript(value=of, slice=name, ctx=ast.Load())
                    | ast.Compare(left=name, comparators=[of])
                ) if not ast.unparse(of).endswith("signals"):
                    name = None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found[name.value] = f"{file.name}:{name.lineno}"
    return found


def test_each_signal_that_a_rule_or_a_model_reads_has_a_producer() -> None:
    known = emitted()
    readers = read_by_models() | {name: rule.id for rule in all_rules() for name in rule.reads}
    assert len(readers) > 200 and "step_s" in read_by_models()
    assert {name: who for name, who in readers.items() if not known.fullmatch(name)} == {}
    assert not known.fullmatch("gpu.no_such_signal") and not known.fullmatch("tensor_active_ratio")
