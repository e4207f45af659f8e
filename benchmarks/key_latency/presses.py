"""One session on the main screen: keys pressed at random moments, and the time until the screen
changed.

`?` opens the help, Escape closes it. Escape is measured separately: a terminal sends the same byte
at the start of every special key, so Textual waits 100 ms for further bytes. All output is kept
with its time and replayed into a terminal emulator afterwards: a press is visible when the first
row belongs to the other screen, and it is complete when the last row does, too.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fake_box import FakeBox
from benchmarks.own_program import (
    own_command,
    own_environment,
    to_main_screen,
    wait_for_idle_worker,
)
from benchmarks.pty_program import Program, Replay

HELP, ESCAPE = b"?", b"\x1b"
PATIENCE_S = 10.0
ANSWER_S = 30.0
"""How long a key may wait for its screen: seconds of output may wait on a full line."""
SETTLE_S = 3.0
HEAD = 8
"""Characters at the head of the first row that do not move."""


@dataclass(frozen=True)
class Condition:
    """`line` makes the terminal's line; None is a line that is never full. `hiccups` are those of
    the driver, see FakeBox. `environment`: further variables."""

    name: str
    gpus: int
    interval_s: float
    line: Callable[[], Callable[[int], bytes]] | None = None
    pcie_ms: int = 0
    hiccups: tuple[int, int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Latencies:
    """Seconds from key to screen, for presses with an answer: until it is visible, and until it is
    complete."""

    shows_s: list[float] = field(default_factory=list)
    help_s: list[float] = field(default_factory=list)
    escape_s: list[float] = field(default_factory=list)
    unanswered: int = 0
    bytes_per_s: list[float] = field(default_factory=list)


Rows = tuple[str, str]


def press_keys(
    condition: Condition, folder: Path, driver: Path, presses: int, into: Latencies
) -> None:
    """Add `presses` presses of each key under `condition` to `into`."""
    with main_screen(condition, folder, driver) as (program, _):
        press(program, presses, into)


@contextlib.contextmanager
def main_screen(
    condition: Condition, folder: Path, driver: Path
) -> Iterator[tuple[Program, FakeBox]]:
    """The program on the main screen under `condition`, with its spare worker at rest. Afterwards
    `q` ends the program."""
    folder.mkdir(parents=True)
    with FakeBox(
        folder / "box", driver, condition.gpus, pcie_ms=condition.pcie_ms, hiccups=condition.hiccups
    ) as box:
        environment = {**own_environment(box, folder), **condition.environment}
        arguments = own_command("--interval", str(condition.interval_s))
        line = condition.line() if condition.line else None
        with Program(arguments, environment=environment, cwd=folder, take=line) as program:
            if not program.read_until_shown(r"H200", 60) or not to_main_screen(program):
                raise SystemExit(
                    f"{condition.name}: no main screen; the screen:\n{program.picture()}"
                )
            wait_for_idle_worker(program)
            yield program, box
            program.press(b"q")
            program.wait_end(PATIENCE_S)


def press(program: Program, presses: int, into: Latencies) -> None:
    """Press each key `presses` times on the main screen of `program`, and add the answers to
    `into`."""
    chance = random.Random(presses)
    main, help_ = _learn(program)
    sent = program.bytes
    pressed: list[tuple[float, bytes]] = []
    begun = program.chunks[-1][0]
    for _ in range(presses):
        program.read_for(chance.uniform(0.5, 1.2))
        _press(program, HELP, help_, pressed)
        program.read_for(chance.uniform(0.3, 0.6))
        _press(program, ESCAPE, main, pressed)
    program.read_for(1.0)
    into.bytes_per_s.append((program.bytes - sent) / (program.chunks[-1][0] - begun))
    answers = _answers(program.chunks, pressed, {HELP: help_, ESCAPE: main})
    for (_, key), (shows, whole) in zip(pressed, answers, strict=True):
        if whole is None or shows is None:
            into.unanswered += 1
        elif key == HELP:
            into.shows_s.append(shows)
            into.help_s.append(whole)
        else:
            into.escape_s.append(whole)


def _learn(program: Program) -> tuple[Rows, Rows]:
    """How to recognise the main screen and the help: the start of the first row and the whole last
    row."""
    replay, fed = Replay(), 0

    def last_row() -> str:
        nonlocal fed
        for _, chunk in program.chunks[fed:]:
            replay.feed(chunk)
        fed = len(program.chunks)
        return replay.row(-1)

    recognised = []
    for key in (HELP, ESCAPE):
        before = last_row()
        program.press(key)
        if not program.read_until(lambda: last_row() != before, ANSWER_S):  # noqa: B023
            raise SystemExit(f"the help never came or never went; the screen:\n{program.picture()}")
        program.read_for(SETTLE_S)
        last_row()
        recognised.append(_rows(replay))
    help_, main = recognised
    return main, help_


def _rows(replay: Replay) -> Rows:
    return replay.row(0)[:HEAD], replay.row(-1)


def _press(program: Program, key: bytes, wanted: Rows, pressed: list[tuple[float, bytes]]) -> None:
    """Press a key, and read until the screen seems to be there. The replay afterwards gives the
    result."""
    first = len(program.chunks)
    word = max(wanted[1].split(), key=len).encode()
    pressed.append((program.press(key), key))
    program.read_until(
        lambda: word in b"".join(chunk for _, chunk in program.chunks[first:]), ANSWER_S
    )


Answer = tuple[float | None, float | None]


def _answers(
    chunks: list[tuple[float, bytes]], pressed: list[tuple[float, bytes]], wanted: dict[bytes, Rows]
) -> list[Answer]:
    """For each press, the time until its screen was visible and complete; None if the next key was
    pressed before.

    None too if the screen was there already: on a full line, the answer to the key before was still
    under way.
    """
    replay, number = Replay(), 0
    answers: list[Answer] = []
    for index, (when, key) in enumerate(pressed):
        until = pressed[index + 1][0] if index + 1 < len(pressed) else float("inf")
        shows = whole = None
        while number < len(chunks) and chunks[number][0] < when:
            replay.feed(chunks[number][1])
            number += 1
        overtaken = _rows(replay) == wanted[key]
        while number < len(chunks) and chunks[number][0] < until:
            at, chunk = chunks[number]
            replay.feed(chunk)
            number += 1
            if overtaken or whole is not None:
                continue
            rows = _rows(replay)
            if shows is None and rows[0] == wanted[key][0]:
                shows = at - when
            if rows == wanted[key]:
                whole = at - when
        answers.append((shows, whole))
    return answers
