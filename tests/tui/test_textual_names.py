"""The names of Textual outside its documented interface: `TEXTUAL_NAMES` has all of them, and the
installed Textual has them as listed."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType

import pytest
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver

import gpuconsole.tui
from gpuconsole.tui.driver.posix import TEXTUAL_NAMES, TerminalWriter, TextualName

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
UNDOCUMENTED_MODULES = ("textual.driver", "textual.drivers")
PUBLIC = ("_replace", "_asdict", "_fields", "_exit")
"""Documented names of NamedTuple and os."""


# --- the installed Textual ------------------------------------------------------------------------


def pinned_version() -> str:
    return next(
        line.partition("==")[2].strip()
        for line in CONSTRAINTS.read_text().splitlines()
        if line.startswith("textual==")
    )


def problem(listed: TextualName) -> str:
    """What differs from the table in the installed Textual; empty: nothing."""
    module, _, class_name = listed.owner.partition(":")
    try:
        owner = importlib.import_module(module)
        owner = getattr(owner, class_name) if class_name else owner
    except (ImportError, AttributeError):
        return f"{listed.owner} does not exist"
    if not listed.signature:
        return "" if listed.name in stored_names(owner) else f"{listed} does not exist"
    if (function := getattr(owner, listed.name, None)) is None:
        return f"{listed} does not exist"
    signature = inspect.signature(function)
    bare = signature.replace(
        parameters=[
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in signature.parameters.values()
        ],
        return_annotation=inspect.Signature.empty,
    )
    return "" if str(bare) == listed.signature else f"{listed} has the parameters {bare}"


def unused_by(listed: TextualName) -> list[str]:
    """The methods of Textual that no longer use an overridden name: the override would have no
    effect."""
    module, _, class_name = listed.owner.partition(":")
    owner = getattr(importlib.import_module(module), class_name, None)
    methods = [getattr(owner, method, None) for method in listed.used_by]
    return [
        method
        for method, function in zip(listed.used_by, methods, strict=True)
        if function is None or listed.name not in names_in(function.__code__)
    ]


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a function uses, with those of its inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def problems() -> list[str]:
    """One line per name that differs, with both versions of Textual."""
    versions = f"textual {metadata.version('textual')} is installed, {pinned_version()} is tested"
    differences = [difference for listed in TEXTUAL_NAMES if (difference := problem(listed))]
    differences += [
        f"{listed.owner}.{method} does not use {listed.name}"
        for listed in TEXTUAL_NAMES
        for method in unused_by(listed)
    ]
    return [
        f"{difference} ({versions}; listed in gpuconsole/tui/driver/posix.py)"
        for difference in differences
    ]


def test_textual_has_every_name_with_the_listed_parameters() -> None:
    found = problems()
    assert not found, "\n" + "\n".join(found)


def test_the_writer_has_what_textual_calls_on_its_own_writer() -> None:
    called = {
        node.attr
        for node in ast.walk(class_tree(LinuxDriver))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "_writer_thread"
    }
    assert called and called <= set(dir(TerminalWriter)), (
        f"gpuconsole/tui/driver/posix.py: TerminalWriter lacks {called - set(dir(TerminalWriter))}"
    )


def test_a_missing_name_is_reported_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LinuxDriver, "_sigcont_application")
    monkeypatch.setattr(Driver, "suspend_application_mode", lambda self, reason: None)
    monkeypatch.setattr(LinuxDriver, "write", lambda self, data: None)
    missing, changed, unused = problems()
    assert "LinuxDriver._sigcont_application(self, *_) does not exist" in missing
    assert (
        f"textual {metadata.version('textual')} is installed, {pinned_version()} is tested"
        in missing
    )
    assert "suspend_application_mode(self) has the parameters (self, reason)" in changed
    assert "LinuxDriver.write does not use _writer_thread" in unused


# --- the code of gpuconsole.tui -------------------------------------------------------------------


@cache
def class_tree(cls: type) -> ast.ClassDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return tree


@cache
def stored_names(cls: type) -> frozenset[str]:
    """Names that the source of a class defines: methods, class variables, and attributes that its
    methods set."""
    names: set[str] = set()
    for node in class_tree(cls).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
    attributes = (
        node
        for node in ast.walk(class_tree(cls))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return frozenset(names | {node.attr for node in attributes if _is_self(node.value)})


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def used_by_class(cls: type) -> set[str]:
    """The names of Textual that a class of ours overrides, or uses through `self`: the private
    ones, and all of an undocumented base."""
    textual_bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "textual"]
    own_bases = [base for base in cls.__mro__ if base.__module__.startswith("gpuconsole.")]
    undocumented = any(base.__module__.startswith(UNDOCUMENTED_MODULES) for base in textual_bases)
    of_textual = (
        frozenset[str]().union(*(stored_names(base) for base in textual_bases))
        if textual_bases
        else frozenset()
    )
    own = frozenset[str]().union(*(stored_names(base) for base in own_bases))
    through_self = {
        node.attr
        for node in ast.walk(class_tree(cls))
        if isinstance(node, ast.Attribute) and (_is_self(node.value) or _is_super(node.value))
    }
    overridden = stored_names(cls) & of_textual
    if undocumented:
        return (overridden | through_self) & of_textual
    return {name for name in overridden | (through_self - own) if is_private(name)}


def private_uses(path: Path) -> Iterator[str]:
    """Private names in a file that are imported from Textual, or used through another object than
    `self`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "textual":
            if any(is_private(part) for part in (node.module or "").split(".")):
                yield from (alias.name for alias in node.names)
            else:
                yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("textual._"))
        elif (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and node.attr not in PUBLIC
            and not _is_self(node.value)
        ):
            yield node.attr


def our_modules() -> list[str]:
    return [
        module.name for module in pkgutil.walk_packages(gpuconsole.tui.__path__, "gpuconsole.tui.")
    ]


def used_names() -> dict[str, str]:
    """The names of Textual that `gpuconsole.tui` needs outside the documented interface, each with
    a module that uses the name."""
    used: dict[str, str] = {}
    for module_name in our_modules():
        module = importlib.import_module(module_name)
        assert module.__file__ is not None
        names = set(private_uses(Path(module.__file__)))
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module_name:
                names |= used_by_class(value)
        used |= dict.fromkeys(names, module_name)
    return used


def test_the_table_has_every_private_name_in_the_code_and_no_other() -> None:
    used = used_names()
    listed = {entry.name for entry in TEXTUAL_NAMES} | {
        entry.owner.partition(":")[2] for entry in TEXTUAL_NAMES
    }
    missing = [
        f"{module_name} uses {name}" for name, module_name in used.items() if name not in listed
    ]
    assert not missing, (
        f"not in TEXTUAL_NAMES (gpuconsole/tui/driver/posix.py): {', '.join(missing)}"
    )
    unused = [
        str(entry) for entry in TEXTUAL_NAMES if is_private(entry.name) and entry.name not in used
    ]
    assert not unused, f"no longer used, remove from TEXTUAL_NAMES: {', '.join(unused)}"


def test_a_new_private_use_is_found(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text(
        "from textual._loop import loop_last\nimport textual._parser\n"
        "self._app._post_message(self._own._replace(a=1))\n"
    )
    assert set(private_uses(path)) == {"loop_last", "textual._parser", "_post_message"}


class _Overriding(LinuxDriver):
    def _enable_mouse_pixels(self) -> None:
        self._must_signal_resume = self._mouse
        self.flush()
        self.own = 1


def test_overrides_and_attributes_of_a_base_are_found() -> None:
    assert used_by_class(_Overriding) == {
        "_enable_mouse_pixels",
        "_must_signal_resume",
        "_mouse",
        "flush",
    }
