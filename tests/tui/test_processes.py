"""The table of processes: order, filter, tree, selection, signals, and names that mean harm."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import unicodedata

import msgspec
import pexpect
import pyte
import pytest
from textual.pilot import Pilot

from gpuconsole.model import units
from gpuconsole.model.machine import Process
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import cell_width, plain
from gpuconsole.report.cells import spans
from gpuconsole.report.machine.processes import (
    ORDERS,
    ProcessFilter,
    arrange,
    identity,
    paint_process,
    process_lines,
    question,
    title,
)
from gpuconsole.session.api import A_RECORDING, View
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.processes import ProcessesScreen
from tests.tui.fake_gpu_box import HOSTILE, WALL, BoxSession, assert_exact, box, drawn, on_box, text
from tests.tui.fake_session import view
from tests.tui.test_app import shows, text_of
from tests.waiting import until

LONG = "x" * 65_536
RANK_0 = box(8).processes[0]


def hostile(pid: int = 666, command: str = HOSTILE) -> Process:
    return msgspec.structs.replace(
        RANK_0,
        pid=pid,
        name=HOSTILE,
        command=command,
        user=HOSTILE,
        container=HOSTILE,
        kind=HOSTILE,
    )


def with_processes(*processes: Process, gpus: int = 8) -> View:
    return msgspec.structs.replace(box(gpus), processes=processes)


def pids(processes: tuple[Process, ...], choice: ProcessFilter) -> list[int]:
    return [entry.pid for entry in arrange(processes, choice)]


# --- what is painted ------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [0, 1, 8, 64])
def test_rows_are_as_wide_as_asked(gpus: int) -> None:
    shown = box(gpus, lost=(0,), mig=(1,)) if gpus else view(processes=box(1).processes)
    shown = msgspec.structs.replace(
        shown,
        processes=(*shown.processes, hostile(), hostile(667, LONG), hostile(668, HOSTILE * 300)),
    )
    for width in (8, 23, 40, 59, 71, 80, 97, 120, 200):
        for choice in (
            ProcessFilter(),
            ProcessFilter(tree=True),
            ProcessFilter(needle="no such thing \x1b[2J"),
        ):
            entries = arrange(shown.processes, choice)
            for height in (1, 2, 24):
                assert_exact(
                    drawn(
                        process_lines(shown, entries, choice, width, WALL),
                        width,
                        height,
                        identity(RANK_0),
                    ),
                    width,
                    height,
                )
        for one in shown.processes[:1] + shown.processes[-2:]:
            assert_exact([question(one, "SIGTERM", width)], width)
            assert_exact(paint_process(shown, one, width, WALL)[:40], width)


@pytest.mark.parametrize(
    "command",
    [
        HOSTILE,
        "a\nb\tc\rd",
        "x\u200by\ufeffz",
        "\u202eevil\u2066",
        "[/b][red]",
        "אב 12 גד",
        "e\u0301" * 9,
        LONG,
    ],
)
def test_columns_stay_where_they_are(command: str) -> None:
    shown = with_processes(RANK_0, hostile(9999, command))
    for width in (80, 120):
        head, first, second = text(
            drawn(
                process_lines(
                    shown,
                    arrange(shown.processes, ProcessFilter(sort="pid")),
                    ProcessFilter(),
                    width,
                    WALL,
                ),
                width,
                3,
                None,
            )
        ).split("\n")
        for word, value in (("memory", "90.0 GiB"), ("CPU %", "102"), ("age", "2h01m")):
            end = head.index(word) + len(word)
            assert first[:end].endswith(value) and second[:end].endswith(value)
        assert head.index("command") == first.index("python")


def test_a_name_is_shown_with_all_that_is_in_it() -> None:
    assert (
        plain("a\x1b[2J\x07\x9b\u202e\u200b\n\t\r") == "a\\x1b[2J\\x07\\x9b\\u202e\\u200b\\n\\t\\r"
    )
    assert plain("模型 é/ünï") == "模型 é/ünï" == plain(unicodedata.normalize("NFD", "模型 é/ünï"))
    assert plain("אב") == "\\u05d0\\u05d1" and plain("אב", right_to_left=True) == "אב"
    whole = text(paint_process(box(8), hostile(1, "start " + LONG + " אב \x1b end"), 80, WALL))
    assert (
        whole.count("x") > 65_536
        and "start" in whole
        and "\\x1b end" in whole
        and "אב" in whole
        and "…" not in whole.split("command line")[1]
    )


def test_every_character_that_is_kept_has_a_width_that_all_agree_on() -> None:
    from rich.cells import cell_len

    # ideographs follow, then nothing is assigned
    for start in (*range(0, 0x20000, 64), *range(0xE0000, 0xE0200, 64)):
        shown = [plain(chr(code), right_to_left=True) for code in range(start, start + 64)]
        whole = "".join(shown)
        assert whole.isprintable() and cell_width(whole) == cell_len(whole), hex(start)
        assert all(map(cell_width, shown)), hex(start)


def test_what_cannot_be_seen_reads_na() -> None:
    gone = "no such process"
    shown = with_processes(Process(77, "gpu:0", unseen=gone), RANK_0)
    row = text(
        drawn(
            process_lines(
                shown, arrange(shown.processes, ProcessFilter()), ProcessFilter(), 120, WALL
            ),
            120,
            3,
            None,
        )
    ).split("\n")[2]
    assert row.count("n/a") == 7  # user, SM, time of the memory, memory, CPU, RSS, age
    assert row.rstrip().endswith(gone)
    assert f"n/a: {gone}" in text(paint_process(shown, shown.processes[0], 80, WALL))
    entries = arrange(shown.processes, ProcessFilter())
    heads = process_lines(shown, entries, ProcessFilter(), 120, None).head
    assert " age " not in text([*heads])


def test_why_there_is_nothing_to_see() -> None:
    def said(shown: View, choice: ProcessFilter = ProcessFilter()) -> str:  # noqa: B008
        return text(
            drawn(
                process_lines(shown, arrange(shown.processes, choice), choice, 100, WALL),
                100,
                5,
                None,
            )
        )

    assert "No process is seen on a GPU. What uses gpu:0-7 is not visible here." in said(
        with_processes()
    )
    still = {
        series_key(name, f"gpu:{n}"): 0.0
        for n in range(8)
        for name in ("gpu.sm_active_ratio", "gpu.utilization_ratio", "gpu.hbm_used_bytes")
    }
    assert "No process holds a GPU." in said(
        msgspec.structs.replace(with_processes(), latest=with_processes().latest | still)
    )
    assert "No GPU: no NVIDIA driver" in said(view())
    silent = msgspec.structs.replace(
        with_processes(), processes_missing={f"gpu:{n}": "not permitted" for n in range(7)}
    )
    assert "processes of gpu:0-6 n/a: not permitted" in said(
        silent
    ) and "No process is seen on gpu:7." in said(silent)
    assert "No process matches 'zzz'" in said(box(8), ProcessFilter(needle="zzz"))
    assert "processes of gpu:3 n/a: fell off the bus" in said(box(8, lost=(3,)))


def test_the_name_of_a_gpu_finds_its_processes_only() -> None:
    shown = box(64)
    assert {
        entry.process.device
        for entry in arrange(shown.processes, ProcessFilter(needle="gpu:3"))
        if entry.process
    } == {"gpu:3"}
    assert {
        entry.process.device
        for entry in arrange(shown.processes, ProcessFilter(needle="gpu:6"))
        if entry.process
    } == {"gpu:6"}
    in_order = [
        entry.process.device
        for entry in arrange(shown.processes, ProcessFilter(sort="device"))
        if entry.process
    ]
    assert in_order == sorted(in_order, key=lambda device: int(device.partition(":")[2]))


def test_the_sorted_column_is_marked() -> None:
    for sort, head in (
        ("memory", "memory"),
        ("sm", " SM %"),
        ("memory time", "mem rw"),
        ("host memory", "RSS"),
        ("cpu", " CPU %"),
        ("pid", "    pid"),
        ("name", "command"),
    ):
        shown = box(8)
        choice = ProcessFilter(sort=sort)
        heads = drawn(
            process_lines(shown, arrange(shown.processes, choice), choice, 120, WALL), 120, 3, None
        )[0]
        assert [part.strip() for part, style in heads if style == "heading"] == [head.strip()]


def test_ages() -> None:
    assert [
        units.age(seconds)
        for seconds in (-5, 0, 59, 60, 3599, 7300, 86400 * 3 + 3600 * 4, 86400 * 400)
    ] == [
        "0s",
        "0s",
        "59s",
        "1m00s",
        "59m59s",
        "2h01m",
        "3d04h",
        "400d",
    ]


def test_spans() -> None:
    assert spans(["gpu:0", "gpu:1", "gpu:2", "gpu:5"]) == "gpu:0-2,5"
    assert spans(["gpu:10", "gpu:9", "gpu:40", "gpu:1"]) == "gpu:1,9-10,40"
    assert (
        spans(["gpu:0/mig:1", "gpu:0/mig:2", "gpu:1/mig:0", "cpu"])
        == "cpu gpu:0/mig:1-2 gpu:1/mig:0"
    )
    assert spans([]) == ""


# --- order ----------------------------------------------------------------------------------------


def test_orders_and_what_is_not_known_stands_last_either_way() -> None:
    some = (
        Process(
            3,
            "gpu:0",
            name="b",
            memory_bytes=5,
            sm_ratio=0.1,
            cpu_ratio=0.2,
            memory_time_ratio=0.3,
            host_memory_bytes=7,
        ),
        Process(
            1,
            "gpu:0",
            name="A",
            memory_bytes=9,
            sm_ratio=0.9,
            cpu_ratio=0.1,
            memory_time_ratio=0.1,
            host_memory_bytes=8,
        ),
        Process(2, "gpu:1"),
    )
    assert pids(some, ProcessFilter()) == [1, 3, 2]
    assert pids(some, ProcessFilter(reverse=True)) == [3, 1, 2]
    assert [pids(some, ProcessFilter(sort=sort)) for sort in ORDERS] == [
        [1, 3, 2], [1, 3, 2], [1, 3, 2], [3, 1, 2], [3, 1, 2], [1, 3, 2], [1, 2, 3], [1, 3, 2],
    ]  # fmt: skip
    assert pids(some, ProcessFilter(sort="pid", reverse=True)) == [3, 2, 1]


@pytest.mark.parametrize(
    "needle", ["TRAIN.PY --config", "ada", "3f9c1ab", "enginecore", "gpu:1", "52011"]
)
def test_filter_finds_in_all_that_names_a_process(needle: str) -> None:
    found = arrange(box(8).processes, ProcessFilter(needle=needle))
    assert 0 < len(found) < len(box(8).processes)


def test_filter_takes_nothing_for_a_pattern() -> None:
    some = (
        Process(1, "gpu:0", name="a.c"),
        Process(2, "gpu:0", name="abc"),
        Process(3, "gpu:0", name="[x"),
    )
    assert pids(some, ProcessFilter(needle="a.c")) == [1]
    assert pids(some, ProcessFilter(needle="[x")) == [3]


def test_tree_puts_children_under_their_parents() -> None:
    some = (
        Process(10, "gpu:0", parent=1, memory_bytes=1),
        Process(11, "gpu:0", parent=10, memory_bytes=9),
        Process(12, "gpu:1", parent=11, memory_bytes=5),
        Process(20, "gpu:0", parent=99, memory_bytes=7, cpu_ratio=1.0),
        Process(21, "gpu:1", parent=99, memory_bytes=6, cpu_ratio=1.0),
        Process(21, "gpu:2", parent=99, memory_bytes=6, cpu_ratio=1.0),
        Process(30, "gpu:3", parent=31),
        Process(31, "gpu:3", parent=30),
    )
    entries = arrange(some, ProcessFilter(tree=True))
    assert [(entry.pid, entry.depth) for entry in entries] == [
        (99, 0), (20, 1), (21, 1), (21, 1), (10, 0), (11, 1), (12, 2), (30, 0), (31, 1),
    ]  # fmt: skip
    shown = with_processes(*some)
    parent = text(
        drawn(process_lines(shown, entries, ProcessFilter(tree=True), 120, WALL), 120, 9, None)
    ).split("\n")[1]
    assert "19.0 B" in parent and " 200 " in parent and "parent of 2" in parent


# --- the screen -----------------------------------------------------------------------------------


def selected(app: ConsoleApp) -> str:
    shown = app.screen
    assert isinstance(shown, ProcessesScreen)
    return next(
        (
            text
            for text, row in zip(texts(app), shown.list_zone.rows, strict=True)
            if row[0][1] == "mark"
        ),
        "",
    )


def texts(app: ConsoleApp) -> list[str]:
    shown = app.screen
    assert isinstance(shown, ProcessesScreen)
    return ["".join(part for part, _ in row) for row in shown.list_zone.rows]


def test_keys_sort_and_turn_around() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        for key, words in (
            ("right", "by SM, largest"),
            ("R", "by SM, smallest"),
            ("right", "by memory time, largest"),
            ("right", "by CPU, largest"),
            ("right", "by host memory, largest"),
            ("right", "by pid, smallest"),
            ("right", "by name, a to z"),
            ("right", "by device"),
            ("right", "by memory, largest"),
            ("R", "by memory, smallest"),
            ("left", "by device"),
            ("left", "by name, a to z"),
        ):
            await pilot.press(key)
            await shows(app, words)

    on_box(box(8), ProcessesScreen, body)


def test_the_selection_holds_on_to_its_process() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await until(lambda: bool(selected(app)))
        await pilot.press("down", "down")
        await until(lambda: " 4101 " in selected(app))
        await pilot.press("left")
        await until(lambda: " 4101 " in selected(app))
        one = next(process for process in api.shown.processes if process.pid == 4101)
        others = tuple(process for process in api.shown.processes if process is not one)
        api.shown = msgspec.structs.replace(
            api.shown, processes=(*others, msgspec.structs.replace(one, memory_bytes=1))
        )
        await pilot.press("right")
        # the smallest memory that is known
        await until(lambda: " 4101 " in texts(app)[10] and selected(app) == texts(app)[10])
        # the same pid, another process
        later = msgspec.structs.replace(one, started=one.started + 99)
        api.shown = msgspec.structs.replace(api.shown, processes=(*others, later))
        await until(lambda: selected(app) and " 4101 " not in selected(app))
        api.shown = msgspec.structs.replace(api.shown, processes=())
        await shows(app, "No process is seen on a GPU.")
        await pilot.press("down", "enter", "T", "g", "end", "pageup")
        assert not api.calls

    on_box(box(8), ProcessesScreen, body)


def test_filter_then_escape_clears_it_before_it_leaves() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("slash", *"vllm", "enter")
        await shows(app, "2 of 12 on 2 devices")
        await shows(app, "filter: vllm")
        await pilot.press("escape")
        await shows(app, "12 on 8 devices")
        await pilot.press("slash", "q", "k")
        await shows(app, "No process matches 'qk'")
        await pilot.press("escape")
        await shows(app, "12 on 8 devices")
        await pilot.press("escape")
        await until(lambda: not isinstance(app.screen, ProcessesScreen))

    on_box(box(8), ProcessesScreen, body, (80, 24))


def test_enter_shows_the_whole_command_and_escape_goes_back() -> None:
    long = "python " + " ".join(f"--option-{n} {'v' * 50}" for n in range(200)) + " --last"
    shown = with_processes(msgspec.structs.replace(RANK_0, command=long))

    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("enter")
        await shows(app, "uid 1000")
        await pilot.press("end")
        await shows(app, "--last")
        await pilot.press("T")
        await shows(app, "send SIGTERM to 4100")
        await pilot.press("escape")
        await shows(app, "nothing was sent")
        assert "--last" in text_of(app)
        await pilot.press("escape")
        await shows(app, "by memory")
        assert isinstance(app.screen, ProcessesScreen) and not api.calls

    on_box(shown, ProcessesScreen, body, (80, 24))


def test_a_signal_is_sent_only_after_a_yes() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        for no in ("n", "enter", "escape", "q"):
            await pilot.press("T")
            await shows(app, "send SIGTERM to 4100 python train.py")
            await pilot.press(no)
            await shows(app, "nothing was sent")
        assert not api.calls and isinstance(app.screen, ProcessesScreen)
        await pilot.press("T", "y")
        await shows(app, "SIGTERM sent to 4100 python train.py")
        await pilot.press("T", "left_shift", "K")  # some terminals tell of the shift key by itself
        await shows(app, "send SIGKILL to 4100")
        await pilot.press("y")
        await shows(app, "SIGKILL sent to 4100")
        await pilot.press("K")
        await shows(app, "send SIGKILL to 4100")
        await pilot.press("K")
        await shows(app, "nothing was sent")

    api = on_box(box(8), ProcessesScreen, body, (80, 24))
    assert api.calls[:2] == [
        ("signal", 4100, RANK_0.started, signal.SIGTERM),
        ("signal", 4100, RANK_0.started, signal.SIGKILL),
    ]


def test_a_process_that_is_not_seen_here_is_offered_no_signal() -> None:
    """Its pid is of another namespace, or belongs to a thread of the kernel here."""
    shown = msgspec.structs.replace(box(8), processes=(Process(79, "gpu:0", memory_bytes=2**30),))

    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        for key in ("T", "K"):
            await pilot.press(key)
            await shows(app, "no signal can be sent")
            assert "send SIG" not in text_of(app)
            await pilot.press("y")
        assert not api.calls

    on_box(shown, ProcessesScreen, body)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_digit_of_a_number_is_cut(width: int) -> None:
    wide = Process(4294967295, "gpu:0", memory_bytes=2**64 - 2**20)
    shown = msgspec.structs.replace(box(1), processes=(wide,))
    lines = process_lines(
        shown, arrange(shown.processes, ProcessFilter()), ProcessFilter(), width, WALL
    )
    painted = text([lines.row(0, False)])
    assert "4294967295" in painted and units.size_bytes(wide.memory_bytes).strip() in painted


def test_a_refusal_is_one_line() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        api.error = "4100 python belongs to [/b]\x1b[2Jroot: only root may signal it"
        await pilot.press("T", "y")
        await shows(app, "4100 python belongs to [/b]\\x1b[2Jroot: only root may signal it")

    on_box(box(8), ProcessesScreen, body)


def test_a_process_that_ends_before_the_answer_gets_no_signal() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("T")
        await shows(app, "send SIGTERM to 4100")
        api.shown = msgspec.structs.replace(api.shown, processes=api.shown.processes[1:])
        await shows(app, "4100 has ended: nothing was sent")
        await pilot.press("y")
        await pilot.pause()

    assert not [call for call in on_box(box(8), ProcessesScreen, body).calls if call[0] == "signal"]


def test_sixty_four_gpus_scroll() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("end")
        await until(lambda: "Xorg" in selected(app))
        await pilot.press("home", "pagedown", "pagedown")
        await pilot.pause()
        assert selected(app)
        await pilot.press("g", "end", "up")
        await pilot.pause()
        assert selected(app)

    on_box(box(64), ProcessesScreen, body, (80, 24))


# --- what reaches the terminal --------------------------------------------------------------------

_SCRIPT = """
import asyncio, msgspec
from gpuconsole.tui.app import ConsoleApp
from tests.tui.fake_gpu_box import BoxSession, WALL
from tests.tui.test_processes import ProcessesScreen, hostile, with_processes, RANK_0
api = BoxSession(with_processes(RANK_0, hostile(4101), hostile(4102), gpus=1))
class Shown(ConsoleApp):
    def on_mount(self):
        super().on_mount()
        self.push_screen(ProcessesScreen(api, self.actions))
asyncio.run(Shown(api).run_async())
"""


def test_no_byte_of_a_name_reaches_the_terminal_as_it_is() -> None:
    columns, lines = 120, 30
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "COLORTERM": "truecolor",
    }
    terminal = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(terminal)
    raw = b""
    child = pexpect.spawn(
        sys.executable, ["-c", _SCRIPT], dimensions=(lines, columns), env=environment, timeout=30
    )

    def read_until(*words: str) -> None:
        nonlocal raw
        deadline = time.monotonic() + 30
        while not all(word in "\n".join(terminal.display) for word in words):
            assert time.monotonic() < deadline, "\n".join(terminal.display)
            try:
                chunk = child.read_nonblocking(1 << 16, 0.2)
            except pexpect.TIMEOUT:
                continue
            raw += chunk
            stream.feed(re.sub(rb"\x1b\[[?>=<][0-9;]*(\$p|u)", b"", chunk))

    try:
        read_until("by memory", "4102", "\\x1b]52;c;cm0=")
        rows = [row for row in terminal.display if " GiB" in row and " 410" in row]
        child.send("\x1b[B" + "T")
        read_until("send SIGTERM to 4101")
        child.send("n" + "\r")
        read_until("command line", "uid 1000")
    finally:
        child.close(force=True)
    assert len(rows) == 3
    assert (
        len({row.index("90.0 GiB") for row in rows}) == 1
        and len({row.index("2h01m") for row in rows}) == 1
    )
    for part in (
        b"\x1b]52",
        b"cm0=\x07",
        "\x9b".encode(),
        "\u202e".encode(),
        "\u200b".encode(),
        "\u2066".encode(),
        "\u1160".encode(),
        "\u0f7e".encode(),
    ):
        assert part not in raw, part


def test_a_title_leaves_out_the_folder_of_the_program() -> None:
    assert title(RANK_0, 30) == "python train.py --config confi…"[:29] + "…"
    assert title(Process(1, "gpu:0", name="only a name"), 30) == "only a name"
    assert title(Process(1, "gpu:0", command="[/b] a/b c"), 30) == "[/b] a/b c"


@pytest.mark.parametrize("key", ["left", "right", "R", "g", "slash"])
def test_on_the_page_of_one_process_the_hidden_list_stays_as_it_is(key: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "by memory")
        before = text_of(app)
        await pilot.press("enter")
        await shows(app, "uid 1000")
        await pilot.press(key)
        assert "uid 1000" in text_of(app)
        await pilot.press("escape")
        await until(lambda: text_of(app) == before)

    on_box(box(8), ProcessesScreen, body)


@pytest.mark.parametrize("key", ["T", "K"])
def test_in_a_recording_no_signal_is_offered_and_no_question_asked(key: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "by memory")
        assert "SIGTERM" not in text_of(app) and "SIGKILL" not in text_of(app)
        await pilot.press(key, "y")
        await shows(app, A_RECORDING)

    assert (
        on_box(msgspec.structs.replace(box(8), recording=True), ProcessesScreen, body).calls == []
    )


# --- states, columns, and what is said of GPUs without a process ----------------------------------


def rows_of(shown: View, width: int = 120, choice: ProcessFilter = ProcessFilter()) -> list[str]:  # noqa: B008
    entries = arrange(shown.processes, choice)
    return text(drawn(process_lines(shown, entries, choice, width, WALL), width, 14)).split("\n")


@pytest.mark.parametrize(
    ("state", "word"), [("R", ""), ("S", ""), ("T", "stopped: "), ("Z", "zombie: "), ("", "")]
)
def test_a_state_that_is_not_ordinary_stands_before_the_command(state: str, word: str) -> None:
    one = msgspec.structs.replace(RANK_0, state=state)
    assert f"{word}python train.py" in rows_of(with_processes(one))[1]
    assert ("zombie" in text(paint_process(box(8), one, 80, WALL))) == (state == "Z")


def test_a_zombie_is_told_with_what_it_holds_and_gets_no_signal() -> None:
    one = Process(
        7, "gpu:0", name="python3", parent=6, started=WALL - 9, state="Z", memory_bytes=39 * 2**29
    )
    page = " ".join(text(paint_process(box(8), one, 80, WALL)).split())
    assert "still counts 19.5 GiB" in page and "n/a: the process has ended" in page

    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("T")
        await shows(app, "no signal reaches it")
        await pilot.press("y")
        assert not api.calls

    on_box(with_processes(one), ProcessesScreen, body)


def test_columns_that_are_empty_everywhere_go() -> None:
    without = msgspec.structs.replace(RANK_0, memory_time_ratio=None, container="")
    heads = rows_of(with_processes(without))[0]
    assert "container" not in heads and "mem rw" not in heads and "CPU %" in heads
    inside = msgspec.structs.replace(without, container="3f9c1ab20d7e")
    assert "container" in rows_of(with_processes(without, inside))[0]
    assert "mem rw" in rows_of(with_processes(without), choice=ProcessFilter(sort="memory time"))[0]


@pytest.mark.parametrize("width", [120, 200])
def test_a_long_user_gets_the_room_that_is_free(width: int) -> None:
    assert (
        "CORP\\ann.example "
        in rows_of(
            with_processes(msgspec.structs.replace(RANK_0, user="CORP\\ann.example", container="")),
            width,
        )[1]
    )


def used(shown: View, gpu: str, held: float, share: float = 0.0) -> View:
    values = {
        series_key("gpu.hbm_used_bytes", gpu): held,
        series_key("gpu.sm_active_ratio", gpu): share,
        series_key("gpu.utilization_ratio", gpu): share,
    }
    return msgspec.structs.replace(shown, latest=shown.latest | values)


def test_a_list_with_a_small_part_of_the_memory_says_so() -> None:
    server = Process(5, "gpu:0", name="nvidia-cuda-mps-server", memory_bytes=30 << 20)
    note = rows_of(used(with_processes(server, gpus=1), "gpu:0", 29.3 * 2**30))[2]
    assert "30.0 MiB of 29.3 GiB" in note and "MPS" in note
    other = msgspec.structs.replace(server, name="python")
    assert "MPS" not in rows_of(used(with_processes(other, gpus=1), "gpu:0", 29.3 * 2**30))[2]
    whole = msgspec.structs.replace(server, memory_bytes=29 * 2**30)
    assert not rows_of(used(with_processes(whole, gpus=1), "gpu:0", 29.3 * 2**30))[2].strip()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "No process holds a GPU."),
        ({"xids": {"gpu:0": (94, 3.0)}}, "No process holds a GPU."),
        ({"lost": {"gpu:0": "GPU is lost"}}, "processes of gpu:0 n/a: GPU is lost"),
    ],
    ids=["nothing", "xid", "lost"],
)
def test_nothing_uses_a_gpu_that_is_only_sick(change: dict[str, object], words: str) -> None:
    still = used(with_processes(gpus=1), "gpu:0", 0.5 * 2**30)
    said = rows_of(msgspec.structs.replace(still, **change))[0]
    assert words in said and "not visible" not in said


def test_a_gpu_without_a_handle_and_one_without_utilization() -> None:
    shown = with_processes(gpus=1)
    gpu = {key for key in shown.latest if key.endswith("device=gpu:0}")}
    nothing = {key: value for key, value in shown.latest.items() if key not in gpu}
    reasons = dict.fromkeys(gpu, "unknown driver error")
    closed = msgspec.structs.replace(shown, latest=nothing, unavailable=reasons)
    assert rows_of(closed)[0].strip() == "processes of gpu:0 n/a: unknown driver error"
    little = {series_key("gpu.hbm_used_bytes", "gpu:0"): 1e9}
    assert rows_of(msgspec.structs.replace(shown, latest=nothing | little))[0].strip() == (
        "No process is seen on a GPU."
    )


def test_one_gpu_or_one_job() -> None:
    shown = box(8)
    assert pids(shown.processes, ProcessFilter(device="gpu:3")) == [4103]
    empty = used(msgspec.structs.replace(shown, processes=()), "gpu:6", 0.0)
    assert rows_of(empty, choice=ProcessFilter(device="gpu:6"))[0].strip() == (
        "No process holds gpu:6."
    )
    assert "job of process 5 has ended" in rows_of(shown, choice=ProcessFilter(job=5))[0]


def test_p_shows_all_processes_again() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "gpu:3: 1 of 12 on 1 device")
        await pilot.press("p")
        await shows(app, "12 on 8 devices")
        assert "gpu:3: " not in text_of(app)

    on_box(box(8), lambda api, actions: ProcessesScreen(api, actions, "gpu:3"), body)


def test_sigint_is_sent_after_a_yes() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("I")
        await shows(app, "send SIGINT to 4100")
        await pilot.press("y")
        await shows(app, "SIGINT sent to 4100")

    api = on_box(box(8), ProcessesScreen, body, (80, 24))
    assert api.calls == [("signal", 4100, RANK_0.started, signal.SIGINT)]
