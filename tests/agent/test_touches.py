"""The table of what the agent touches has all that a program can find of the agent, and a program finds all that the table says is always there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuconsole.agent.hooks.install import AFTER_IMPORT
from gpuconsole.agent.hooks.touches import FUNCTIONS, GROUPS, Group, Touch, Until, When, until
from tests.agent.listener import Listener

pytestmark = pytest.mark.xdist_group("touches")

PROGRAM = Path(__file__).parent / "programs" / "touched.py"
Picture = dict[str, Any]
Label = tuple[tuple[str, ...], str]
"""The holders, any of which a row may name, and the attribute."""
ROWS = [(group, touch) for group in GROUPS for touch in group.touches]

BEFORE_TORCH = {When.ALWAYS, When.START}
WITH_TORCH = {When.ALWAYS, When.TORCH, When.IMPORT}
TRAINING = WITH_TORCH | {When.MADE, When.STEP}
MOMENTS: dict[str, tuple[set[When], set[When]]] = {
    "before torch": (BEFORE_TORCH, BEFORE_TORCH),
    "after torch": (WITH_TORCH, WITH_TORCH),
    "in training": (TRAINING, TRAINING | {When.FOUND, When.COUNTED}),
}
"""By moment, what must be there and what may be there."""
AFTER: dict[str, set[Until]] = {"off": {Until.LEAVE, Until.EXIT}, "left": {Until.EXIT}}
"""By moment after the end of the agent, what may be there."""
LISTS = ("sys.meta_path", "gc.callbacks", "/proc/self/fd", "atexit")
BY_NAME = {
    "/proc/self/task": "sampler",
    "weakref.finalize": "atexit",
    "sys.path_importer_cache": "folder",
}
"""The name in the table of what a program only counts, or whose entries have the names of files."""


def pictures(text: str) -> dict[str, Picture]:
    return {picture["moment"]: picture for picture in map(json.loads, text.splitlines())}


def labels(picture: Picture, alone: Picture) -> Iterator[Label]:
    """What differs between a program under the agent and the same program without it."""
    assert alone["touched"] == []
    held = [(tuple(holders), name, identity) for holders, name, identity in picture["touched"]]
    named = {identity for holders, name, identity in held if rows((holders, name))}
    yield from ((holders, name) for holders, name, identity in held if rows((holders, name)) or identity not in named)
    for key in picture.keys() - {"touched", "moment"}:
        value, other = picture[key], alone[key]
        if key in LISTS:
            new: Counter[str] = Counter(value) - Counter(other)
            yield from (((key,), entry) for entry in new)
        elif key == "os.environ":
            yield from (((key,), variable) for variable in {*value, *other} if value.get(variable) != other.get(variable))
        elif key == "sys.modules":
            yield from {((key,), kind_of(module)) for module in {*value} - {*other}}
        elif value != other:
            yield (key,), BY_NAME.get(key, f"{other} has become {value}")


def kind_of(module: str) -> str:
    package = module.partition(".")[0]
    return "agent" if package == "_gpuconsole_agent" else "stdlib" if package in sys.stdlib_module_names else package


def rows(label: Label) -> list[tuple[Group, Touch]]:
    holders, name = label
    return [(group, touch) for group, touch in ROWS if name in touch.names.split() and {*holders} & {*touch.holders.split(", ")}]


def is_loaded(holder: str, modules: list[str]) -> bool:
    """Whether the program has the module or the class, or has the list that the row is about."""
    holder = holder.rstrip("+()")
    return holder in modules or holder.rpartition(".")[0] in modules


def expected(group: Group, touch: Touch, moment: str, picture: Picture) -> bool:
    """Whether the program must find what a row says."""
    if touch.when not in MOMENTS[moment][0] or (until(group, touch) is Until.ITSELF and touch.when is not When.START):
        return False
    if touch.holders in picture:
        return touch.names != "stdlib" or moment == "after torch"  # the program loads such modules later, too
    is_attribute = group is FUNCTIONS or touch.names.startswith("_gpuconsole")
    return is_attribute and any(is_loaded(holder, picture["sys.modules"]) for holder in touch.holders.split(", "))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Picture, list[Label]]]:
    """By moment: what the program sees, and what differs from the same program without the agent."""
    command = (sys.executable, str(PROGRAM), "leave")
    plain = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=True, timeout=150)
    listener = Listener(tmp_path_factory.mktemp("job"))
    done = listener.run(*command)
    assert (done.returncode, done.stderr) == (0, plain.stderr)
    assert len(listener.watched[0].steps) > 40
    alone, watched = pictures(plain.stdout), pictures(done.stdout)
    assert watched.keys() == {*MOMENTS, *AFTER}
    return {moment: (picture, list(labels(picture, alone[moment]))) for moment, picture in watched.items()}


@pytest.mark.slow
@pytest.mark.parametrize("moment", [*MOMENTS, *AFTER])
def test_all_that_a_program_finds_of_the_agent_is_in_the_table(seen: dict[str, tuple[Picture, list[Label]]], moment: str) -> None:
    allowed = MOMENTS.get(moment, (set(), {*When}))[1]
    found = seen[moment][1]
    assert [label for label in found if not rows(label)] == [], "no row"
    assert [label for label in found if not any(touch.when in allowed for _, touch in rows(label))] == [], "too early"
    if moment in AFTER:
        assert [label for label in found if not any(until(*row) in AFTER[moment] for row in rows(label))] == [], "stays"


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_program_finds_all_that_is_always_there(seen: dict[str, tuple[Picture, list[Label]]], moment: str) -> None:
    picture, found = seen[moment]
    there = {(holder, name) for holders, name in found for holder in holders}
    missing = [
        f"{touch.holders}: {name}"
        for group, touch in ROWS
        if expected(group, touch, moment, picture)
        for name in touch.names.split()
        if not any((holder, name) in there for holder in touch.holders.split(", "))
    ]
    assert missing == []


def test_every_module_that_gets_hooks_is_in_the_table() -> None:
    holders = [holder for touch in FUNCTIONS.touches for holder in touch.holders.split(", ")]
    assert [name for name in AFTER_IMPORT if not any(f"{holder}.".startswith(f"{name}.") for holder in holders)] == []


def test_no_row_stands_twice() -> None:
    places = [(holder, name, touch.when) for _, touch in ROWS for holder in touch.holders.split(", ") for name in touch.names.split()]
    assert [place for place, count in Counter(places).items() if count > 1] == []
