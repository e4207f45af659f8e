"""The cell driver's core: whatever is fed, what is taken makes a terminal show the wanted screen,
in every cell."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pyte
import pytest
from pyte.graphics import TEXT

from gpuconsole.report.cells import row_width
from gpuconsole.report.machine.tiles import tiles
from gpuconsole.tui import skeleton
from gpuconsole.tui import terminal as terminals
from gpuconsole.tui.driver.cells import PLAIN, after, cell_style, change, clip, split
from gpuconsole.tui.driver.posix import TerminalWriter
from gpuconsole.tui.driver.screen import BEGIN_UPDATE, END_UPDATE, Effect, Screen, Wanted
from gpuconsole.tui.terminal import Colours, Terminal, terminal, why_no_screen
from tests.matrix import matrix
from tests.tui.fake_session import cpu_view, gpu_view
from tests.waiting import wait_until

TRUE = Terminal(Colours.TRUE, False)
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
SGR = [
    "",
    "1",
    "2",
    "1;36",
    "7",
    "4;35",
    "2;39;49",
    "90;49",
    "38;2;10;200;30",
    "48;5;52",
    "1;2;3;9;31;44",
    "38;5;200;7",
]
WORDS = [
    "gpu",
    "SM 78 %",
    "  ",
    " " * 12,
    "▂▃▅▆▇█",
    "──────",
    "日本",
    "한국어",
    "e\u0301a",
    "18 240",
    "±·°",
    "x",
    "│ tile │",
    "~" * 30,
]


@pytest.fixture(autouse=True)
def _pyte_knows_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyte has no dim: it is told apart as blinking, which nothing here uses."""
    monkeypatch.setitem(TEXT, 2, "+blink")


class Emulator:
    """A terminal that shows what it is sent."""

    def __init__(self, width: int, height: int) -> None:
        self.screen = pyte.Screen(width, height)
        self.screen.reset_mode(7, private=True)
        self._stream = pyte.Stream(self.screen)

    def feed(self, data: str) -> None:
        self._stream.feed(data.replace("\n", "\r\n"))

    def scribble(self) -> None:
        """What another program leaves behind."""
        cursor = self.screen.cursor.y, self.screen.cursor.x
        for y in range(self.screen.lines):
            self._stream.feed(f"\x1b[{y + 1};1H\x1b[0;7;35m" + "#" * self.screen.columns)
        self._stream.feed(f"\x1b[{cursor[0] + 1};{cursor[1] + 1}H\x1b[4;31m")

    def cells(self) -> list[list[tuple[object, ...]]]:
        return [
            [_seen(self.screen.buffer[y][x]) for x in range(self.screen.columns)]
            for y in range(self.screen.lines)
        ]


def _seen(char: pyte.screens.Char) -> tuple[object, ...]:
    """What can be seen of a cell: on a blank neither colour nor weight."""
    around = (char.bg, char.underscore, char.strikethrough, char.reverse)
    if char.data == " " and char.bg == "default" and not any(around[1:]):
        return (" ",)
    return (char.data, char.fg, char.bold, char.blink, char.italics, *around)


def frame(rng: random.Random, width: int, height: int, *, halves: bool = False) -> str:
    """An update as Textual's compositor writes it: a region of rows, each of styled segments."""
    rows = (
        range(height)
        if rng.random() < 0.2
        else sorted(rng.sample(range(height), rng.randint(1, height)))
    )
    x0 = rng.choice([0, 0, rng.randrange(width)]) if halves else 0
    parts = []
    for n, y in enumerate(rows):
        parts.append(f"{chr(10) if n else ''}\x1b[{y + 1};{x0 + 1}H")
        room = rng.randint(1, width - x0) if halves else width
        for text, codes in segments(rng, room):
            parts.append(f"\x1b[{codes}m{text}\x1b[0m" if codes else text)
    return "".join(parts) + f"\x1b[{rng.randint(1, height)};{rng.randint(1, width)}H"


def segments(rng: random.Random, room: int) -> Iterator[tuple[str, str]]:
    while room > 0:
        _, cells = split(rng.choice(WORDS))
        cells = clip(cells, room)
        room -= len(cells)
        yield "".join(cells), rng.choice(SGR)


def drain(screen: Screen, limit: int = 1 << 20) -> str:
    parts = []
    while screen.pending or screen.opening:
        screen.open()
        parts.append(screen.take(limit))
    return "".join(parts)


def wanted_cells(screen: Screen) -> list[list[tuple[object, ...]]]:
    """The wanted screen as an emulator would show it, drawn cell by cell without any cleverness."""
    wanted = screen._wanted
    plain = Emulator(wanted.width, wanted.height)
    for y, (chars, styles) in enumerate(zip(wanted.chars, wanted.styles, strict=True)):
        for x, (char, one) in enumerate(zip(chars, styles, strict=True)):
            if char:
                plain.feed(f"\x1b[{y + 1};{x + 1}H{change(None, one)}{char}")
    return plain.cells()


@pytest.mark.parametrize("seed", range(8))
def test_every_cell_is_as_textual_wrote_it(seed: int) -> None:
    """Beside the same writes fed to a terminal as they are."""
    rng = random.Random(seed)
    width, height = rng.choice([(120, 40), (40, 12), (7, 3), (33, 10)])
    screen, shown, plain = (
        Screen(width, height, TRUE),
        Emulator(width, height),
        Emulator(width, height),
    )
    screen.feed(ENTER)
    for _ in range(25):
        data = frame(rng, width, height)
        screen.feed(data)
        plain.feed(data)
        if rng.random() < 0.7:
            shown.feed(drain(screen))
            assert shown.cells() == plain.cells()
            assert (shown.screen.cursor.x, shown.screen.cursor.y) == (
                plain.screen.cursor.x,
                plain.screen.cursor.y,
            )


@pytest.mark.parametrize("seed", matrix(range(8), in_ci=range(3)))
def test_every_cell_whatever_happens_between(seed: int) -> None:
    """Halves of wide characters, frames taken in parts, resizes, suspends, unknown sequences, a
    terminal written to by others."""
    rng = random.Random(100 + seed)
    width, height = 60, 14
    screen, shown = Screen(width, height, TRUE), Emulator(width, height)
    screen.feed(ENTER)
    for _ in range(60):
        match rng.randrange(10):
            case 0:
                width, height = width % 70 + rng.randint(2, 5), rng.randint(1, 20)
                shown.screen.resize(height, width)
                shown.scribble()
                screen.resize(width, height)
            case 1:
                screen.feed(LEAVE)
                if rng.random() < 0.5:
                    shown.feed(drain(screen))
                screen.feed(ENTER)
                if rng.random() < 0.5:
                    screen.feed(frame(rng, width, height))
                while screen.pending and not screen._entered:
                    shown.feed(screen.take(1))
                shown.scribble()
                screen.redraw()
            case 2:
                screen.feed(
                    rng.choice(
                        ["\x1b[2J", "\x1b[3L", "\x1b[1;3r\x1b[r", "\x1b[5;5f", "\t\b", "\x1b7"]
                    )
                )
            case 3:
                shown.scribble()
                screen.redraw()
            case 4:
                screen.feed(
                    "\x1b[H" + "\n".join(f"\x1b[{y + 1};1H" + " " * width for y in range(height))
                )
            case 5:
                shown.feed(screen.take(rng.randint(1, 200)))
        screen.feed(frame(rng, width, height, halves=True))
        if rng.random() < 0.6:
            shown.feed(drain(screen, rng.randint(1, 400)))
            assert shown.cells() == wanted_cells(screen)
    shown.feed(drain(screen))
    assert shown.cells() == wanted_cells(screen)


def test_what_does_not_change_is_not_sent() -> None:
    rng = random.Random(1)
    screen = Screen(120, 40, TRUE, entered=True)
    data = frame(rng, 120, 40) + "\x1b[1;1H"
    screen.feed(data)
    drain(screen)
    screen.feed(data)
    assert drain(screen) == "" and screen.cost.frames == 1
    screen.feed("\x1b[5;9H\x1b[1;33mQ\x1b[0m\x1b[1;1H")
    assert drain(screen).replace("\x1b[0;", "\x1b[") == "\x1b[5;9H\x1b[1;33mQ\x1b[H"


def test_a_frame_that_is_overtaken_is_not_sent() -> None:
    screen = Screen(20, 4, TRUE, entered=True)
    for number in range(100):
        screen.feed(f"\x1b[1;1Hstep {number:04}\x1b[1;1H")
    assert "0099" in (sent := drain(screen)) and "0098" not in sent
    assert (screen.cost.frames, screen.cost.merged) == (1, 99)


def test_a_cleared_screen_waits_for_what_comes_next() -> None:
    screen = Screen(20, 3, TRUE, entered=True)
    screen.feed("\x1b[1;1Hmain screen")
    drain(screen)
    blank = "\n".join(f"\x1b[{y};1H" + " " * 20 for y in (1, 2, 3)) + "\x1b[1;1H"
    screen.feed(blank)
    assert screen.opening and not screen.pending
    screen.feed("\x1b[3;1Hkeys")  # a part of the next screen
    assert screen.opening and not screen.pending
    screen.feed("\x1b[1;1HHelp       \x1b[1;1H")
    assert screen.pending
    sent = drain(screen)
    assert "Help" in sent and "keys" in sent


PASSING = [
    "\x1b[?1000h", "\x1b[?1003l", "\x1b[?25l", "\x1b[?2004h", "\x1b[>25u", "\x1b[<u",
    "\x1b[?2026$p", "\x1b[?2048$p", "\x1b[6n", "\x07", "\x1b]52;c;aGVsbG8=\x07",
    "\x1b]22;pointer\x07", "\x1b]0;title\x1b\\", "\x1b[14t", "\x1b[?7l", "\x1b[2 q", "\x1b=",
    "\x1b[c",
]  # fmt: skip


@pytest.mark.parametrize("sequence", PASSING)
def test_what_is_not_cells_passes_in_order_and_forgets_nothing(sequence: str) -> None:
    screen = Screen(20, 4, TRUE, entered=True)
    screen.feed("\x1b[1;1Habc\x1b[1;1H")
    drain(screen)
    screen.feed(sequence)
    screen.feed("\x1b[2;1Hx\x1b[1;1H" + sequence)
    assert screen.take(0) == sequence + sequence
    assert "abc" not in drain(screen)


def test_a_sequence_in_two_writes_is_one() -> None:
    for cut in range(1, 9):
        wanted = Wanted(10, 2, TRUE)
        text = "\x1b[2;3H\x1b[1mx"
        wanted.feed(text[:cut])
        wanted.feed(text[cut:])
        assert wanted.chars[1][2] == "x" and wanted.styles[1][2] is cell_style(
            frozenset({1}), "", "", ""
        )
        assert not wanted.passing


def test_an_unknown_sequence_passes_and_all_is_drawn_again() -> None:
    screen = Screen(3, 1, TRUE, entered=True)
    screen.feed("\x1b[1;1H\x1b[7mabc\x1b[0m\x1b[1;1H")
    drain(screen)
    screen.feed("\x1b[2J")
    sent = drain(screen)
    assert sent.startswith("\x1b[m\x1b[2J") and "abc" in sent
    assert [item.effect for item in _passing("\x1bPq#0\x1b\\\x1bc")] == [
        Effect.UNKNOWN,
        Effect.UNKNOWN,
    ]


def _passing(data: str) -> list[object]:
    wanted = Wanted(10, 2, TRUE)
    wanted.feed(data)
    return list(wanted.passing)


def test_leaving_sends_no_cells_and_leaves_no_colour() -> None:
    screen = Screen(3, 1, TRUE)
    screen.feed(ENTER + "\x1b[1;1H\x1b[7mabc\x1b[0m")
    drain(screen)
    screen.feed("\x1b[1;1Hlate" + LEAVE + "\x1b[?25h")
    assert drain(screen) == "\x1b[m" + LEAVE + "\x1b[?25h"


def test_the_alternate_screen_is_entered_once() -> None:
    """Where the first picture has entered it already, entering again would clear the picture."""
    screen = Screen(20, 4, TRUE, entered=True)
    screen.feed(ENTER + "\x1b[?1000h")
    assert drain(screen) == "\x1b[?1000h"


def test_synchronized_output_stays_around_a_frame() -> None:
    screen = Screen(20, 4, TRUE, entered=True)
    screen.feed("\x1b[1;1Habc")
    assert BEGIN_UPDATE not in drain(screen)  # the terminal has not said that it knows it
    for text in ("abd", "abd"):
        screen.feed(BEGIN_UPDATE)
        screen.feed(f"\x1b[1;1H{text}")
        assert not screen.pending
        screen.feed(END_UPDATE)
        sent = drain(screen)
        assert (
            (sent.startswith(BEGIN_UPDATE) and sent.endswith(END_UPDATE))
            if text != "abd" or sent
            else not sent
        )
    assert screen.cost.frames == 2


def test_styles_change_by_the_shortest_way() -> None:
    bold = after(PLAIN, "1", Colours.TRUE)
    accent = after(bold, "36", Colours.TRUE)
    assert change(bold, bold) == ""
    assert change(bold, accent) == "\x1b[36m"
    assert change(accent, bold) == "\x1b[39m"
    assert change(accent, PLAIN) == "\x1b[m"
    assert change(accent, after(PLAIN, "7", Colours.TRUE)) == "\x1b[0;7m"
    assert after(accent, "39;49;22", Colours.TRUE) is PLAIN


def test_cells_of_two_colours_in_turn_are_written_colour_by_colour() -> None:
    """As in a history whose level goes up and down. The picture is that of the random tests
    above."""
    screen = Screen(60, 1, Terminal(Colours.MANY, False), entered=True)

    def history(*levels: str) -> str:
        cells = (f"\x1b[38;5;{103 if level > '▄' else 60}m{level}" for level in levels)
        return "\x1b[H" + "\x1b[m        ".join(cells) + "\x1b[m\x1b[1;60H"

    screen.feed(history("▂", "▆", "▃", "▇", "▂", "▅"))
    drain(screen)
    screen.feed(history("▃", "▇", "▂", "▆", "▃", "▆"))
    sent = drain(screen)
    assert sent.count("\x1b[38;5;60m") == 1 and "38;5;103" not in sent, (
        "the terminal has the other colour already"
    )
    screen.feed("\x1b[H\x1b[1mab\x1b[mcd\x1b[1mef")
    assert "ab\x1b[mcd\x1b[1mef" in drain(screen), "neighbours are written without a move"


@pytest.mark.parametrize(
    ("colours", "seen"),
    [
        (Colours.TRUE, "38;2;255;95;0"),
        (Colours.MANY, "38;5;202"),
        (Colours.SIXTEEN, "91"),
        (Colours.NONE, ""),
    ],
)
def test_colours_are_those_that_the_terminal_has(colours: Colours, seen: str) -> None:
    assert after(PLAIN, "38;2;255;95;0", colours).fore == seen
    assert after(PLAIN, "1;36;48;2;0;0;0", colours).attributes == {1}


def test_hyperlinks_are_part_of_the_cells() -> None:
    screen = Screen(20, 2, TRUE, entered=True)
    screen.feed("\x1b[1;1H\x1b]8;id=1;http://x\x1b\\link\x1b]8;;\x1b\\ text\x1b[1;1H")
    sent = drain(screen)
    assert "\x1b]8;id=1;http://x\x1b\\" in sent and sent.index("link") < sent.index(
        "\x1b]8;;\x1b\\", sent.index("link")
    ) < sent.index("text")


def test_cells() -> None:
    assert split("a日b") == ("", ["a", "日", "", "b"])
    assert split("e\u0301x") == ("", ["e\u0301", "x"])
    assert split("\u0301x") == ("\u0301", ["x"])
    assert split("👩\u200d🚀!") == ("", ["👩\u200d🚀", "", "!"])
    assert split("█─日e\u0301→…\x41", ascii_only=True) == (
        "",
        ["#", "-", "?", "?", "e", ">", "~", "A"],
    )
    assert clip(["a", "日", "", "b"], 2) == ["a", " "] and clip(["a", "日", "", "b"], 3) == [
        "a",
        "日",
        "",
    ]


def test_after_a_character_of_doubtful_width_the_cursor_is_placed() -> None:
    screen = Screen(20, 1, TRUE, entered=True)
    screen.feed("\x1b[1;1H👩\u200d🚀ab")
    assert "👩\u200d🚀\x1b[1;3Hab" in drain(screen)


@pytest.mark.parametrize(
    ("environ", "encoding", "expected"),
    [
        (
            {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
            "utf-8",
            Terminal(Colours.TRUE, False),
        ),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "utf-8", Terminal(Colours.NONE, False)),
        (
            {"TERM": "screen-256color", "LANG": "de_DE.UTF-8"},
            "utf-8",
            Terminal(Colours.MANY, False),
        ),
        ({"TERM": "xterm", "NO_COLOR": ""}, "utf-8", Terminal(Colours.SIXTEEN, False)),
        ({"TERM": "xterm-kitty"}, "utf-8", Terminal(Colours.TRUE, False)),
        ({"TERM": "vt220"}, "utf-8", Terminal(Colours.NONE, False)),
        (
            {"TERM": "xterm", "LC_ALL": "POSIX", "LANG": "C.UTF-8"},
            "utf-8",
            Terminal(Colours.SIXTEEN, True),
        ),
        ({"TERM": "xterm", "LANG": "C"}, "utf-8", Terminal(Colours.SIXTEEN, True)),
        (
            {"TERM": "xterm", "LANG": "C", "LC_CTYPE": "C.UTF-8", "PYTHONUTF8": "0"},
            "utf-8",
            Terminal(Colours.SIXTEEN, True),
        ),
        (
            {"TERM": "xterm", "LC_ALL": "C", "PYTHONUTF8": "1"},
            "utf-8",
            Terminal(Colours.SIXTEEN, False),
        ),
        ({"TERM": "xterm", "LANG": "de_DE@euro"}, "utf-8", Terminal(Colours.SIXTEEN, True)),
        ({"TERM": "xterm", "LC_CTYPE": "UTF-8"}, "utf-8", Terminal(Colours.SIXTEEN, False)),
        ({"TERM": "xterm"}, "ascii", Terminal(Colours.SIXTEEN, True)),
    ],
)
def test_what_the_environment_says_of_the_terminal(
    environ: dict[str, str], encoding: str, expected: Terminal
) -> None:
    assert terminal(environ, encoding) == expected


def test_terminals_without_cursor_addressing() -> None:
    assert why_no_screen({"TERM": "xterm"}) is None
    assert all("TERM" in (why_no_screen({"TERM": name}) or "") for name in terminals.NO_ADDRESSING)
    assert why_no_screen({}) is not None


class Pipe:
    """A terminal that takes what fits into a pipe, until it is read."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.screen = Screen(80, 24, TRUE, entered=True)
        self.writer = TerminalWriter(self.writes, self.screen)
        self.taken = b""

    def read(self) -> None:
        self.taken += os.read(self.reads, 4096)

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    pipe.writer.start()
    yield pipe
    pipe.writer.stop()
    pipe.close()


def fill_up(pipe: Pipe, seconds: float = 20.0) -> int:
    """Write different frames until the reader holds the writer up; how many."""
    rng = random.Random(3)
    deadline = time.monotonic() + seconds
    count = 0
    while not pipe.screen.cost.merged:
        assert time.monotonic() < deadline
        began = time.monotonic()
        pipe.writer.write(frame(rng, 80, 24))
        count += 1
        assert time.monotonic() - began < 0.25, "a write has waited for the terminal"
        if pipe.screen.cost.bytes > 60_000 and count > 200:
            return count
    return count


def test_a_reader_that_stops_never_blocks_the_app_nor_the_end() -> None:
    pipe = Pipe()
    pipe.writer.start()
    fill_up(pipe)
    began = time.monotonic()
    pipe.writer.write(LEAVE)
    pipe.writer.stop()
    assert time.monotonic() - began < 0.8
    pipe_reader = threading.Thread(target=lambda: [pipe.read() for _ in range(100)], daemon=True)
    pipe_reader.start()  # lets the thread that was given up end
    wait_until(lambda: LEAVE.encode() in pipe.taken, 5, "the last words, late")


def test_a_slow_reader_gets_the_newest_state(pipe: Pipe) -> None:
    fill_up(pipe)
    pipe.writer.write("\x1b[2;1Hnewest" + " " * 74 + "\x1b[1;1H")
    shown = Emulator(80, 24)

    def settled() -> bool:
        if pipe.screen.pending or len(pipe.taken) < pipe.screen.cost.bytes:
            pipe.read()
        return not pipe.screen.pending and len(pipe.taken) == pipe.screen.cost.bytes

    wait_until(settled, 10, "all is sent")
    shown.feed(pipe.taken.decode())
    assert shown.screen.display[1].startswith("newest")
    assert shown.cells() == wanted_cells(pipe.screen)


def test_the_last_words_go_out(pipe: Pipe) -> None:
    pipe.writer.write("\x1b[1;1Hbye" + LEAVE + "\x1b[?25h")
    pipe.writer.stop()
    pipe.read()
    assert pipe.taken.decode().endswith(LEAVE + "\x1b[?25h")


def test_a_terminal_that_is_gone_costs_nothing(pipe: Pipe) -> None:
    os.close(pipe.reads)
    pipe.reads = os.open(os.devnull, os.O_RDONLY)
    pipe.writer.write("\x1b[1;1Habc")
    wait_until(lambda: not pipe.screen.pending, 5, "dropped")
    pipe.writer.write("\x1b[1;1Habd")
    pipe.writer.stop()


def test_a_failure_reaches_the_app_and_the_terminal_is_given_back(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(limit: int) -> str:
        raise ValueError("no more")

    monkeypatch.setattr(pipe.screen, "take", broken)
    pipe.writer.write("\x1b[1;1Habc")
    wait_until(lambda: pipe.writer._failure, 5, "the thread has ended")
    with pytest.raises(RuntimeError, match="cannot be sent"):
        pipe.writer.write("\x1b[1;1Habd")
    pipe.writer.write(LEAVE)
    pipe.writer.stop()
    pipe.read()
    assert pipe.taken.decode() == LEAVE


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20), (40, 12), (200, 60), (10, 3)])
def test_the_first_picture_fits_and_claims_no_number(size: tuple[int, int]) -> None:
    rows = skeleton.picture(*size, skeleton.GPU_TILES)
    assert len(rows) == size[1] and {row_width(row) for row in rows} == {size[0]}
    assert not any(char.isdigit() for row in rows for text, _ in row for char in text)
    shown = Emulator(*size)
    shown.feed(skeleton.ansi(rows))
    assert [line.rstrip() for line in shown.screen.display] == [
        "".join(text for text, _ in row).rstrip() for row in rows
    ]


def test_the_first_picture_has_the_titles_of_the_console() -> None:
    assert tuple(tile.title for tile in tiles(gpu_view(), True)) == skeleton.GPU_TILES
    assert tuple(tile.title for tile in tiles(cpu_view(), True)) == skeleton.CPU_TILES


def test_the_first_frame_replaces_all_of_what_is_there_though_it_is_a_part() -> None:
    screen, shown = Screen(20, 4, TRUE, entered=True), Emulator(20, 4)
    shown.scribble()
    screen.feed("\x1b[3;5H\x1b[1mabc\x1b[0m\x1b[1;1H")
    shown.feed(drain(screen))
    assert shown.cells() == wanted_cells(screen)


def test_a_plain_blank_between_reversed_cells_stays_plain() -> None:
    screen, shown = Screen(20, 1, TRUE, entered=True), Emulator(20, 1)
    screen.feed("\x1b[1;1H\x1b[7mab\x1b[0m \x1b[7mcd\x1b[0m\x1b[1;1H")
    shown.feed(drain(screen))
    screen.feed("\x1b[1;1H\x1b[7maB\x1b[0m \x1b[7mCd\x1b[0m\x1b[1;1H")
    shown.feed(drain(screen))
    assert shown.cells() == wanted_cells(screen)


def test_a_job_gets_no_variable_of_the_console() -> None:
    code = (
        "import os, gpuconsole.tui, textual.constants as c, gpuconsole.engine.children.environment"
        " as e; print(c.MAX_FPS, e.without_ours(os.environ).get('TEXTUAL_FPS'))"
    )
    for given, seen in ((None, "240 None\n"), ("30", "30 30\n"), ("240", "240 240\n")):
        environment = {
            name: value for name, value in os.environ.items() if name != "TEXTUAL_FPS"
        } | ({"TEXTUAL_FPS": given} if given else {})
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == seen
