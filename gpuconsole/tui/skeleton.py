"""The first picture: the layout of the console without any number. It is on the screen before the
large imports.

Plain ANSI, standard library only. Later the driver takes over the alternate screen. Until then
`restore` and the signal handlers give the terminal back.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Mapping
from typing import Any

from gpuconsole.report.cells import (
    Row,
    beside,
    blank,
    fill,
    inner_width,
    line,
    panel,
    spread,
    to_ascii,
)
from gpuconsole.tui.terminal import screen_fd, terminal, why_no_screen, why_no_terminal
from gpuconsole.tui.widgets.layout import LayoutPlan, plan

GPU_TILES = (
    "SM active",
    "tensor active",
    "HBM used",
    "HBM bandwidth",
    "PCIe",
    "NVLink",
    "tokens/s",
    "step",
)
CPU_TILES = ("cores busy", "run-queue delay", "memory", "model", "disk", "net", "tokens/s", "step")
HINT_ROWS = 9
ROWS_FOR_HINTS = 36
"""With fewer rows a machine with GPUs has no room for the hints."""
MAIN_TITLES = (0, 2, 6, 7)
_SGR = {"": "", "title": "\x1b[1m", "dim": "\x1b[2m"}
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[m\x1b[?1049l\x1b[?25h"
_ALL_MODES_OFF = (
    "\x1b[?2026l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?7h\x1b[<u"
)
_DEADLY = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
"""SIGINT too: an exception in the middle of an import can crash msgspec while it builds its
decoders."""

_painted = False
_handed_over = False
_attributes: list[Any] | None = None
"""The attributes of the terminal before the picture."""


def fits(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a terminal for the console."""
    return why_no_terminal() is None and why_no_screen(environ) is None


def paint(environ: Mapping[str, str] = os.environ, *, overview: bool = False) -> None:
    """Put the picture on the terminal, once. `overview`: the machine overview in place of a run."""
    global _painted, _attributes
    if _painted:
        return
    try:
        width, height = size()
        _attributes = termios.tcgetattr(0)
    except (OSError, termios.error):
        return
    _painted = True
    for number in _DEADLY:
        signal.signal(number, _die)
    # Keys pressed from now on are for the console: the terminal does not show them, and keeps them
    # until `typed` reads them.
    quiet: list[Any] = [list(part) if isinstance(part, list) else part for part in _attributes]
    quiet[0] &= ~termios.ICRNL
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
    # keys, as later in the app
    quiet[6][termios.VSUSP] = quiet[6][termios.VQUIT] = os.fpathconf(0, "PC_VDISABLE").to_bytes(
        1, "little"
    )
    with contextlib.suppress(termios.error):
        termios.tcsetattr(0, termios.TCSANOW, quiet)
    able = terminal(environ)
    picture_rows = (
        empty_overview(width, height)
        if overview
        else picture(width, height, GPU_TILES if _nvidia() else CPU_TILES)
    )
    if able.ascii_only:
        picture_rows = [to_ascii(row) for row in picture_rows]
    _write(_ENTER + ansi(picture_rows), "ascii" if able.ascii_only else "utf-8")


def show(rows: list[Row]) -> None:
    """Put these rows in the place of the picture, while the driver has not taken over."""
    if painted():
        able = terminal()
        shown = [to_ascii(row) for row in rows] if able.ascii_only else rows
        _write("\x1b[2J" + ansi(shown), "ascii" if able.ascii_only else "utf-8")


def size() -> tuple[int, int]:
    """The columns and rows of the terminal."""
    columns, rows = os.get_terminal_size(_output())
    return columns or 80, rows or 24


def painted() -> bool:
    """Whether the alternate screen is on, with the picture."""
    return _painted and not _handed_over


def typed() -> bytes:
    """What was typed since the picture is on the screen."""
    parts = []
    while painted() and select.select([0], [], [], 0)[0]:
        if not (part := os.read(0, 4096)):
            break
        parts.append(part)
    return b"".join(parts)


def hand_over() -> list[Any] | None:
    """From now on the driver gives the terminal back, with the returned attributes; None: with the
    attributes that the driver found."""
    global _handed_over
    attributes = _attributes if painted() else None
    _handed_over = True
    return attributes


def restore() -> None:
    """Give the terminal back, unless the driver has taken it over."""
    global _painted
    if painted():
        _painted = False
        _write(_LEAVE)
        _reset_attributes()


def restore_by_force() -> None:
    """Give the terminal back in any case: the process is about to end."""
    _reset_attributes()
    _write(_ALL_MODES_OFF + _LEAVE)


def _die(number: int, frame: object) -> None:
    """End by a signal that came before the app's own handlers."""
    restore_by_force()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _reset_attributes() -> None:
    if _attributes is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, _attributes)


def _output() -> int:
    return screen_fd() or 2


def _write(text: str, encoding: str = "ascii") -> None:
    with contextlib.suppress(OSError):
        os.write(_output(), text.encode(encoding, "replace"))


def _nvidia() -> bool:
    """Whether an NVIDIA driver seems to be loaded. The console asks the driver later."""
    return sys.platform == "linux" and os.path.exists("/dev/nvidiactl")


def picture(width: int, height: int, titles: tuple[str, ...]) -> list[Row]:
    """The main screen with nothing in it."""
    layout = plan(width, height)
    head = [
        spread(width, [("gpuconsole", "title")], [("starting ", "dim")]),
        *[blank(width)] * (layout.header + layout.answer + layout.steps - 1),
    ]
    rows = (
        head
        + panel("throughput", [], [], width, layout.chart, layout.boxed)
        + _band(layout, titles, width)
    )
    return fill(rows, width, height)


def empty_overview(width: int, height: int) -> list[Row]:
    """The machine overview with nothing in it."""
    boxed = plan(width, height).boxed
    head = [
        spread(width, [("gpuconsole", "title")], [("starting ", "dim")]),
        line(width, "▌ Searching for devices."),
        blank(width),
    ]
    has_hints = not _nvidia() or (width >= 100 and height >= ROWS_FOR_HINTS)
    hints = (
        panel("what to press", [], [], width, min(HINT_ROWS, max(1, height // 2)), boxed)
        if has_hints
        else []
    )
    room = max(0, height - len(head) - len(hints) - 1)
    return fill(
        [
            *head,
            *hints,
            *panel("devices" if _nvidia() else "this machine (CPU)", [], [], width, room, boxed),
        ],
        width,
        height,
    )


def _band(layout: LayoutPlan, titles: tuple[str, ...], width: int) -> list[Row]:
    own = width - layout.side
    shown = titles if layout.all_eight else tuple(titles[n] for n in MAIN_TITLES)
    if layout.side:
        inner = inner_width(own, layout.boxed)
        devices = panel(
            "device",
            [],
            [line(inner, (title, "")) for title in shown],
            own,
            layout.devices,
            layout.boxed,
        )
        return beside(devices, _side(layout, layout.side))
    return [line(own, (title, "")) for title in shown[: layout.devices]] + _side(layout, own)


def _side(layout: LayoutPlan, width: int) -> list[Row]:
    return panel("findings", [], [], width, layout.causes, layout.boxed) + panel(
        "tried", [], [], width, layout.tried, layout.boxed
    )


def ansi(rows: list[Row]) -> str:
    """Rows for a clear screen: long blanks are skipped."""
    parts = []
    for y, row in enumerate(rows, 1):
        text = "".join(
            f"{sgr}{text}\x1b[m" if (sgr := _SGR.get(style)) else text for text, style in row
        ).rstrip()
        if text:
            parts.append(
                f"\x1b[{y}H" + re.sub(" {6,}", lambda blanks: f"\x1b[{len(blanks[0])}C", text)
            )
    return "".join(parts)
