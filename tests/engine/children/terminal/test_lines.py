"""The output of a job as text, compared with what a terminal shows."""

from __future__ import annotations

import random

import pyte
import pytest

from gpuconsole.engine.children.terminal.lines import MAX_COLUMNS, OutputLines


def lines_of(*pieces: bytes, kept: int = 100) -> list[str]:
    lines = OutputLines(kept)
    for piece in pieces:
        lines.feed(piece)
    return [line.rstrip() for line in lines.text()]


def on_a_terminal(data: bytes) -> list[str]:
    """The same by pyte, a terminal emulator."""
    screen = pyte.Screen(100, 60)
    screen.set_mode(pyte.modes.LNM)  # newlines arrive as the job wrote them
    pyte.ByteStream(screen).feed(data)
    shown = [line.rstrip() for line in screen.display]
    while shown and not shown[-1]:
        shown.pop()
    return shown


@pytest.mark.parametrize(
    "data",
    [
        b"one\ntwo\nthree",
        b"10 %\r20 %\r100 %\ndone\n",
        b"long progress\rshort\x1b[K\n",
        b"epoch 1\nstep 1\n\x1b[Astep 2\n\x1b[Astep 3\n",
        b"a\nb\nc\x1b[2A\rA\x1b[2B\rC",
        b"\x1b[31mred\x1b[0m and \x1b[1;38;5;200mbright\x1b[m\n",
        b"\x1b]0;a title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n",
        b"ab\x08\x08cd\tx\n",
        b"x" * 30 + b"\x1b[5D\x1b[1K|\x1b[10Gy\n",
        b"one\ntwo\nthree\x1b[2A\x1b[Jx",
        "grün 中文\n".encode(),
        b"\x1b(B\x1b[?25lhidden cursor\x1b[?25h\n",
    ],
)
def test_shows_what_a_terminal_shows(data: bytes) -> None:
    assert lines_of(data) == on_a_terminal(data)
    assert lines_of(*(bytes([byte]) for byte in data)) == on_a_terminal(data), (
        "each byte in a piece of its own"
    )


def test_keeps_the_last_lines_and_counts_the_others() -> None:
    lines = OutputLines(kept=1000)
    for n in range(2500):
        lines.feed(b"line %d\n" % n)
    assert lines.text() == [f"line {n}" for n in range(1501, 2500)]
    assert lines.dropped == 1501
    assert lines.last == "line 2499"


def test_a_line_without_an_end_stays_bounded() -> None:
    lines = OutputLines()
    for _ in range(50):
        lines.feed(b"y" * 10_000)
    assert len(lines.text()[0]) == MAX_COLUMNS


def test_any_bytes_are_taken_in_any_pieces() -> None:
    draw = random.Random(1)
    alphabet = [
        *(bytes([n]) for n in range(256)),
        b"\x1b[",
        b"\x1b]",
        b"\x1b[3A",
        b"\x1b[2K",
        b"text",
        b"\n",
    ]
    for _ in range(300):
        data = b"".join(draw.choices(alphabet, k=60))
        cut = draw.randrange(len(data))
        whole, parts = lines_of(data), lines_of(data[:cut], data[cut:])
        assert whole == parts
