"""The progress line of a headless run."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import struct
import termios

import msgspec
import pyte
import pytest

from gpuconsole.cli.headless import ProgressLines
from tests.tui.fake_session import gpu_view


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_line_redraws_itself_in_one_row_of_any_terminal(columns: int) -> None:
    view = gpu_view(probing="a probe with a name that is longer than any terminal is wide " * 3)
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
    with os.fdopen(writer, "w") as stream:
        progress = ProgressLines(stream)
        for second in range(8):
            progress.show(view, second, 60.0)
        written = b""
        while b" 7/60 s" not in written or select.select([reader], [], [], 0.2)[0]:
            written += os.read(reader, 1 << 16)
    os.close(reader)
    screen = pyte.Screen(columns, 10)
    pyte.Stream(screen).feed(written.decode())
    rows = [row.rstrip() for row in screen.display if row.strip()]
    assert len(rows) == 1
    assert rows[0].startswith("[##") and "7/60 s" in rows[0]
    assert len(rows[0]) >= columns - 2  # all of the width is used


def test_without_a_terminal_lines_are_plain_and_rare() -> None:
    stream = io.StringIO()
    progress = ProgressLines(stream)
    for second in range(3):
        progress.show(gpu_view(), second, 60.0)
    progress.line("a note")
    progress.done()
    assert (
        stream.getvalue()
        == "    0/60 s  train-gpt on gpu:0  18 240 tokens/s  input.too_few_workers\na note\n"
    )


def test_a_new_stage_of_the_start_is_written_at_once() -> None:
    stream = io.StringIO()
    progress = ProgressLines(stream)
    view = gpu_view()
    view = msgspec.structs.replace(
        view, runs=(msgspec.structs.replace(view.runs[-1], state="starting"),)
    )
    for stage in ("asking", "asking", "waiting: connection refused", "waiting: connection refused"):
        progress.show(msgspec.structs.replace(view, stage=stage), 0.0, 60.0)
    assert [line.rpartition("gpu:0: ")[2] for line in stream.getvalue().splitlines()] == [
        "asking",
        "waiting: connection refused",
    ]


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    view = gpu_view()
    run = msgspec.structs.replace(view.runs[-1], scenario="\x1b[2Jevil")
    stream = io.StringIO()
    ProgressLines(stream).show(msgspec.structs.replace(view, runs=(run,)), 0.0, 60.0)
    assert "\x1b" not in stream.getvalue()


def test_the_rate_is_the_present_rate_and_an_outage_is_named() -> None:
    view = gpu_view()
    key = "workload.tokens_per_s{device=gpu:0}"
    stalled = msgspec.structs.replace(
        view, latest={**view.latest, key: 0.0}, down="connection refused", down_s=12.4
    )
    stream = io.StringIO()
    ProgressLines(stream).show(stalled, 0.0, 60.0)
    expected = (
        "    0/60 s  train-gpt on gpu:0  0 tokens/s  the server has not answered for 12 s:"
        " connection refused\n"
    )
    assert stream.getvalue() == expected
