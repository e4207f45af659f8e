"""The functions that take the place of the program's own call nothing of ours outside the guard: an exception of ours would end the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuconsole.agent.hooks as package

FOLDER = Path(package.__file__).parent
MAKER = "wrappers_without_level"
"""The decorator of functions that make such wrappers."""
GUARDS = ("entry", "hot_entry")
HARMLESS = {
    "get_ident", "id", "len", "type", "now", "super", "functools.wraps", "noted.get", "sys.exc_info", "setattr",
    "tracing.compiles", "tracing.is_compiling",  # torch's own
    "recorder.stack.append", "recorder.stack.pop",  # the second only where the list has two members
    "raised", "self._line",  # they catch all that they raise
    "serves", "owner", "spanned_step", "wrap", "self._annotate",  # what stands for the program's own function, or for torch's
}  # fmt: skip
PLAIN = ("plain", "call", "function", "bind", "loader_init", "lambda")
"""Names of the program's own functions begin with these words."""


def unguarded(node: ast.AST, inside: bool = False) -> Iterator[str]:
    """What is called within `node`, but not within a `try` that catches each Exception and switches something off."""
    if isinstance(node, ast.Try):
        catches = any(
            isinstance(handler.type, ast.Name) and handler.type.id == "Exception" and "switch." in ast.unparse(handler)
            for handler in node.handlers
        )
        for part in node.body:
            yield from unguarded(part, inside or catches)
        for rest in (*node.orelse, *node.finalbody):
            yield from unguarded(rest, inside)
        return
    if isinstance(node, ast.Call) and not inside:
        yield ast.unparse(node.func)
    for child in ast.iter_child_nodes(node):
        yield from unguarded(child, inside)


def wrappers(path: Path) -> Iterator[tuple[str, set[str]]]:
    """The wrappers of a module and the functions that make wrappers, each with what a wrapper calls and what is neither the program's own nor an entry
    point."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    entries = {
        prefix + function.name
        for function in functions
        if any(isinstance(one, ast.Call) and ast.unparse(one.func) in GUARDS for one in function.decorator_list)
        for prefix in ("", "self.")
    }
    for function in functions:
        decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
        if MAKER in decorators:
            made = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function]
            called = {name for one in made for name in unguarded(one)} - entries - HARMLESS
            yield function.name, {name for name in called if not name.startswith(PLAIN)}


MAKERS = {f"{path.relative_to(FOLDER)}: {name}": called for path in sorted(FOLDER.rglob("*.py")) for name, called in wrappers(path)}


def test_the_makers_of_wrappers_are_found() -> None:
    assert len(MAKERS) > 15 and any("_spanned_step" in name for name in MAKERS)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_wrapper_calls_only_the_program_and_what_is_guarded(maker: str) -> None:
    assert not MAKERS[maker]
