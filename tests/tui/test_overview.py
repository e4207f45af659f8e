"""The machine overview: what every kind of machine shows, at all sizes."""

from __future__ import annotations

import asyncio
import datetime
import itertools

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.cli.parser import parse
from gpuconsole.engine import catalog
from gpuconsole.model.metrics import series_key
from gpuconsole.report.cells import row_width
from gpuconsole.report.machine.gpus import MIN_HISTORY_S, GpuChoice, column_s, in_order
from gpuconsole.report.machine.overview import Hint, paint_overview
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import gpu_states
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.first import COMMANDS
from gpuconsole.tui.screens.device import DeviceScreen
from gpuconsole.tui.screens.processes import ProcessesScreen
from gpuconsole.tui.screens.scenarios import occupied
from gpuconsole.tui.widgets.bars import KeyBar
from gpuconsole.tui.widgets.header import paint_header
from gpuconsole.tui.widgets.overview import OverviewZone
from tests.tui.fake_gpu_box import Body, BoxSession, box, idle, sick
from tests.tui.fake_session import FakeSession, gpu_view, view
from tests.waiting import until

HINTS = [
    Hint("s", "scenarios", "Training and serving, most with one fault to find."),
    Hint("q", "quit", "Quit."),
    Hint("gpuconsole --demo", "", "a recorded session"),
]


FULL = 1e15
"""A value at the top of every scale: rows for a history are then not blank."""


def painted(shown: View, width: int, height: int) -> str:
    rows = paint_overview(shown, HINTS, lambda key, columns: [FULL] * columns, width, height).rows
    assert len(rows) == height
    assert {row_width(row) for row in rows} == {width}
    return "\n".join("".join(text for text, _ in row) for row in rows)


@pytest.mark.parametrize("size", [(200, 47), (120, 37), (80, 21), (40, 9), (12, 3)])
@pytest.mark.parametrize("gpus", [0, 1, 8, 64])
def test_fits_any_size(gpus: int, size: tuple[int, int]) -> None:
    text = painted(idle(box(gpus)) if gpus else view(), *size)
    if size[0] >= 80:
        assert "gpuconsole --demo" in text
        assert gpus or ("s scenarios" in text and "Training and serving" in text)


def test_a_machine_without_a_gpu_says_so() -> None:
    text = painted(view(), 120, 37)
    for words in (
        "No GPU: no NVIDIA driver",
        "No number is GPU data",
        "cores busy",
        "gpuconsole --demo",
    ):
        assert words in text
    assert "HBM" not in text and "processes on the GPUs" not in text


def test_every_gpu_of_eight_has_its_state_and_the_processes_are_listed() -> None:
    text = painted(idle(box(8, lost=[3])), 80, 21)
    assert all(f"gpu:{n}" in text for n in range(8))
    assert "1 lost: gpu:3" in text and "lost: fell off the bus" in text and "4 processes" in text
    assert "4100" in text and "train.py" in text
    still = {"gpu.utilization_ratio": 0.0, "gpu.processes": 0.0}
    free = painted(
        msgspec.structs.replace(
            idle(gpu_view()),
            latest={series_key(name, "gpu:0"): value for name, value in still.items()},
        ),
        120,
        37,
    )
    assert "H200: free" in free and "No process holds a GPU." in free


@pytest.mark.parametrize(("width", "height"), [(200, 47), (120, 37), (80, 21)])
def test_a_sick_gpu_looks_sick_in_its_row(width: int, height: int) -> None:
    shown = sick()
    rows = paint_overview(shown, HINTS, lambda key, columns: [FULL] * columns, width, height).rows
    text = ["".join(part for part, _ in row) for row in rows]
    at = datetime.datetime.fromtimestamp(shown.wall - 60).strftime(
        "%H:%M:%S" if width > 80 else "%H:%M"
    )
    told = " ".join(row.removeprefix("▌ ").strip() for row in text[:2])
    for part in ("8 GPUs", "3 sick: gpu:1", "1 lost: gpu:7", "4 busy"):
        assert part in told, told
    words = {
        "gpu:1": "heat slowdown",
        "gpu:2": "2 ECC errors",
        "gpu:4": f"XID 79 {at}",
        "gpu:5": "power cap",
        "gpu:7": "XID 79",
    }
    for gpu, fault in words.items():
        row = next(
            row
            for row in rows
            if "".join(part for part, _ in row).strip("│ ").startswith(f"{gpu} ")
        )
        assert any(fault in part and style == "alert" for part, style in row), (gpu, row)
    calm = [row for row in rows if any("gpu:0 " in part or "gpu:3 " in part for part, _ in row)]
    assert not any(style == "alert" for row in calm for _, style in row)
    if width > 80:
        assert any(
            "4 ECC errors before" in part and style == "dim" for row in calm for part, style in row
        )


def test_a_temperature_at_its_threshold_is_red() -> None:
    shown = idle(box(2))
    hot = {
        series_key("gpu.temperature_c", "gpu:1"): 87.0,
        series_key("gpu.temperature_slowdown_c", "gpu:1"): 87.0,
    }
    rows = paint_overview(
        msgspec.structs.replace(shown, latest=shown.latest | hot),
        HINTS,
        lambda key, columns: [FULL] * columns,
        120,
        37,
    ).rows
    assert [text.strip() for row in rows for text, style in row if style == "alert"] == ["87/87°"]


def test_a_sampler_that_does_not_start_is_said() -> None:
    text = painted(
        view(
            devices=(), notes=("the sampler ended (exit 70): no memory; starting it again in 4 s",)
        ),
        120,
        37,
    )
    assert "Searching for devices.  the sampler ended (exit 70): no memory" in text


def test_a_power_cap_at_the_default_limit_is_no_fault() -> None:
    """An H100 works like this at full load."""
    assert "power cap" not in painted(idle(box(8)), 120, 37)


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_at_most_a_third_is_empty_on_a_large_screen(gpus: int) -> None:
    rows = painted(idle(box(gpus)) if gpus else view(), 200, 47).splitlines()
    assert sum(not row.strip(" │|") for row in rows) <= len(rows) / 3


@pytest.mark.parametrize(
    ("columns", "seconds"),
    [(160, 2.0), (45, 2.0), (44, 5.0), (22, 5.0), (18, 5.0), (17, 10.0), (10, 10.0)],
)
def test_a_narrow_history_shows_as_much_time_as_a_wide_one(columns: int, seconds: float) -> None:
    assert column_s(columns) == seconds
    assert columns * seconds >= MIN_HISTORY_S or seconds == 10.0


def test_what_the_processes_do_not_need_shows_the_history_of_the_host() -> None:
    lines = painted(idle(box(8)), 200, 47).splitlines()
    at = next(n for n, row in enumerate(lines) if row.startswith("│ cpu "))
    assert all("█" in row for row in lines[at - 2 : at + 1]) and "cores busy" in lines[at]
    gpu = next(row for row in lines if row.startswith("│ gpu:7 "))
    assert lines[at].index("█") == gpu.index("█")  # below those of the GPUs
    assert "…" not in lines[at]  # a cut number is a wrong number
    foot = lines[at:]
    assert sum(not row.strip(" │") for row in foot) <= 2, foot
    small = painted(idle(box(8)), 80, 21).splitlines()
    assert sum("cores busy" in row for row in small) == 1 and "█" not in next(
        row for row in small if "cores busy" in row
    )


def test_an_idle_machine_without_a_gpu_shows_examples_in_place_of_flat_lines() -> None:
    scenarios = list(catalog.scenarios()[0].values())
    for width, height in ((120, 37), (200, 47)):
        rows = paint_overview(
            view(), HINTS, lambda key, columns: [0.0] * columns, width, height, scenarios
        ).rows
        assert {row_width(row) for row in rows} == {width} and len(rows) == height
        lines = ["".join(text for text, _ in row) for row in rows]
        painted = "\n".join(lines)
        assert sum(not one.strip(" │▁") for one in lines) <= height / 4, painted
        assert (
            "start here" in painted
            and "Training waits for slow storage" in painted
            and "…" not in painted
        )
        assert all(one.name in painted for one in scenarios)


def test_the_history_of_an_idle_machine_fills_its_columns_from_the_first_minute_on() -> None:
    asked: list[tuple[int, float]] = []

    class Api(FakeSession):
        def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
            asked.append((columns, seconds))
            return [0.0] * columns

    shown = view(now=30.0)
    OverviewZone(api := Api(shown), ConsoleApp(api).actions).draw(shown, 120, 37)
    assert asked and all(columns > 55 and seconds <= 40 for columns, seconds in asked), asked


@pytest.mark.parametrize("command", [hint.key for hint in COMMANDS])
def test_each_command_that_the_overview_names_exists(command: str) -> None:
    program, *words = command.split()
    assert program == "gpuconsole"
    parse(words)


# --- keys and mouse -------------------------------------------------------------------------------


def on_overview(gpus: int, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    api = BoxSession(idle(box(gpus)))

    async def run() -> None:
        app = ConsoleApp(api, refresh_hz=20.0)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await body(app, pilot, api)

    asyncio.run(run())


def overview_of(app: ConsoleApp) -> OverviewZone:
    return app.main_screen.query_one(OverviewZone)


def marked(app: ConsoleApp) -> str:
    """The line under the cursor."""
    rows = [row for row in overview_of(app).rows if any(style == "mark" for _, style in row)]
    assert len(rows) <= 1
    return "".join(text for row in rows for text, style in row if style == "mark")


def in_sight(app: ConsoleApp) -> list[str]:
    """The GPUs of the table, from top to bottom."""
    lines = ["".join(text for text, _ in row).strip("│ ") for row in overview_of(app).rows]
    table = lines[next(n for n, one in enumerate(lines) if one.startswith("device  state")) :]
    end = next((n for n, one in enumerate(table) if "processes on the GPUs" in one), len(table))
    return [one.split()[0] for one in table[:end] if one.startswith("gpu:")]


def test_the_table_of_64_gpus_scrolls_and_a_map_shows_them_all() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        text = "\n".join("".join(part for part, _ in row) for row in overview_of(app).rows)
        assert (
            "64 GPUs  0        8        16" in text
            and "min  med  max" in text
            and "of 64, arrows scroll" in text
        )
        assert marked(app) == "" and in_sight(app)[0] == "gpu:0"
        await pilot.press("tab", "down", "G")
        assert marked(app).startswith("gpu:63 ") and in_sight(app)[-1] == "gpu:63"
        await pilot.press("up")
        assert marked(app).startswith("gpu:62 ") and in_sight(app)[-1] == "gpu:63"
        await pilot.press("home", "pagedown")
        assert "gpu:0" not in marked(app)

    on_overview(64, body)


def test_each_page_down_shows_other_gpus() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        before, tops = in_sight(app), [0]
        page = len(before) - 1
        for _ in range(3):
            await pilot.press("pagedown")
            seen = in_sight(app)
            assert len(set(seen) - set(before)) >= page - 1, (before, seen)
            assert marked(app).split()[0] in seen
            tops.append(int(seen[0].removeprefix("gpu:")))
            before = seen
        assert all(after - top >= page - 1 for top, after in itertools.pairwise(tops)), tops
        await pilot.press("pageup", "pageup", "pageup")
        assert in_sight(app)[0] == "gpu:0"
        await pilot.press(*["pagedown"] * 20)
        assert in_sight(app)[-1] == "gpu:63" and marked(app).startswith("gpu:63 ")

    on_overview(64, body)


def test_enter_opens_the_processes_of_the_selected_gpu_and_i_its_metrics() -> None:
    """Of both, Escape gives the table back."""

    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("down", "down", "down", "enter")
        screen = app.screen
        assert isinstance(screen, ProcessesScreen)
        assert {entry.process.device for entry in screen._entries if entry.process} == {"gpu:2"}
        await pilot.press("i")
        screen = app.screen
        assert isinstance(screen, DeviceScreen) and screen._place == "gpu:2"
        await pilot.press("escape")
        assert app.screen is app.main_screen and marked(app).startswith("gpu:2 ")
        await pilot.press("i")
        screen = app.screen
        assert isinstance(screen, DeviceScreen) and screen._place == "gpu:2"
        await pilot.press("escape", "enter", "escape")
        assert app.screen is app.main_screen and marked(app).startswith("gpu:2 ")
        await pilot.press("up")
        assert marked(app).startswith("gpu:1 ")

    on_overview(8, body)


@pytest.mark.parametrize("gpus", [8, 64])
def test_the_table_sorts_by_each_column(gpus: int) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        shown = api.view()
        ids = [device.id for device in shown.devices if device.is_gpu]
        seen = set()
        for _ in range(20):
            await pilot.press("right")
            choice = overview_of(app)._choice
            if choice.sort in seen:
                break
            seen.add(choice.sort)
            metric = {
                "power": "gpu.power_w",
                "temperature": "gpu.temperature_c",
                "HBM used": "gpu.hbm_used_bytes",
            }.get(choice.sort)
            if metric is not None:
                by_value = sorted(ids, key=lambda gpu: -shown.latest[series_key(metric, gpu)])
                assert in_sight(app) == by_value[: len(in_sight(app))], choice.sort
                await pilot.press("R")
                assert (
                    shown.latest[series_key(metric, in_sight(app)[0])]
                    == shown.latest[series_key(metric, by_value[-1])]
                )
        assert {"state", "SM active", "power", "temperature", "HBM used", "device"} <= seen

    on_overview(gpus, body)


@pytest.mark.parametrize("ends", ["the first minute", "the first key"])
def test_the_hints_of_the_start_give_their_room_to_the_gpus(ends: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        def shown() -> str:
            rows = [*overview_of(app).rows, *app.main_screen.query_one(KeyBar).rows]
            return "\n".join("".join(text for text, _ in row) for row in rows)

        api.shown = msgspec.structs.replace(api.shown, now=5.0)
        await until(lambda: "in a shell" in shown() and "step 1 of 4" in shown())
        height = overview_of(app).size.height
        if ends == "the first key":
            await pilot.press("down")
        else:
            api.shown = msgspec.structs.replace(api.shown, now=61.0)
        await until(lambda: "in a shell" not in shown() and "step 1" not in shown())
        assert "In a shell: gpuconsole run -- python train.py" in shown()
        await until(lambda: overview_of(app).size.height == height + 1)

    on_overview(8, body)


def test_a_click_selects_a_gpu_and_a_second_click_opens_it() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        zone = overview_of(app)
        y = next(
            n
            for n, row in enumerate(zone.rows)
            if "".join(text for text, _ in row).strip("│ ").startswith("gpu:5 ")
        )
        await pilot.click(zone, offset=(10, y))
        assert marked(app).startswith("gpu:5 ")
        await pilot.click(zone, offset=(10, y))
        assert isinstance(app.screen, ProcessesScreen)
        assert app.screen._choice.device == "gpu:5"

    on_overview(8, body)


def test_the_worst_gpus_come_first_by_state() -> None:
    shown = sick()
    gpus = [device for device in shown.devices if device.is_gpu]
    states = gpu_states(shown, gpus)
    order = [gpu.id for gpu in in_order(shown, gpus, states, GpuChoice(sort="state"))]
    assert order[0] == "gpu:7" and set(order[1:5]) == {"gpu:1", "gpu:2", "gpu:4", "gpu:5"}


def test_a_gpu_with_a_fault_of_its_own_is_not_free() -> None:
    still = {
        series_key(name, f"gpu:{n}"): 0.0
        for n in range(8)
        for name in (
            "gpu.sm_active_ratio",
            "gpu.utilization_ratio",
            "gpu.processes",
            "gpu.hbm_used_bytes",
        )
    }
    shown = msgspec.structs.replace(sick(), processes=(), latest=sick().latest | still)
    gpus = [device for device in shown.devices if device.is_gpu]
    kinds = {gpu: state.kind for gpu, state in gpu_states(shown, gpus).items()}
    assert kinds == {
        "gpu:0": "free",
        "gpu:1": "sick",
        "gpu:2": "sick",
        "gpu:3": "free",
        "gpu:4": "sick",
        "gpu:5": "free",
        "gpu:6": "free",
        "gpu:7": "lost",
    }
    of_a_program = msgspec.structs.replace(shown, xids={"gpu:4": (31, shown.now - 60)})
    assert gpu_states(of_a_program, gpus)["gpu:4"].kind == "free"


def test_the_list_of_scenarios_says_that_its_gpu_is_in_use_and_which_is_free() -> None:
    crowded = idle(box(3))
    gpus = [device.id for device in crowded.devices if device.is_gpu]
    still = {
        series_key(name, gpus[2]): 0.0
        for name in (
            "gpu.sm_active_ratio",
            "gpu.utilization_ratio",
            "gpu.processes",
            "gpu.hbm_used_bytes",
        )
    }
    others = tuple(process for process in crowded.processes if process.device != gpus[2])
    shown = msgspec.structs.replace(
        crowded, processes=others, latest=crowded.latest | still, device=gpus[0]
    )
    assert occupied(shown) == f", in use; {gpus[2]} is free: --device {gpus[2]}"
    hot = {series_key("gpu.clocks_hw_thermal", gpus[0]): 1.0}
    assert occupied(msgspec.structs.replace(shown, latest=shown.latest | hot)).startswith(", sick;")
    # then no GPU is free
    assert occupied(msgspec.structs.replace(shown, processes=crowded.processes)) == ", in use"
    assert occupied(msgspec.structs.replace(shown, device=gpus[2])) == ""


def test_the_corner_names_the_worst_fault_and_counts_the_others() -> None:
    row = "".join(text for text, _ in paint_header(sick(), 120, 1)[0])
    assert "gpu:7 lost: fell off the bus, 4 more with a fault" in row
    only = msgspec.structs.replace(idle(box(8)), xids={"gpu:4": (79, 1.0)})
    assert "gpu:4: XID 79" in "".join(text for text, _ in paint_header(only, 120, 1)[0])


def test_a_history_says_the_time_that_its_columns_have() -> None:
    """In the first seconds the columns are shorter."""
    young = msgspec.structs.replace(idle(box(8)), now=5.0)
    heads = next(row for row in painted(young, 120, 37).splitlines() if "device  state" in row)
    assert "SM 0-100 %, 5 s" in heads or "SM 0-100 %, 6 s" in heads, heads


def test_slash_finds_processes_and_the_letters_are_no_keys() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await pilot.press("slash", *"gpu:3")
        screen = app.screen
        assert isinstance(screen, ProcessesScreen) and screen.needle == "gpu:3"
        await until(lambda: screen.summary().startswith("1 of "))

    on_overview(8, body)


@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_sixty_columns_and_fifteen_rows_show_at_least_the_gpus(gpus: int) -> None:
    lines = painted(idle(box(gpus)), 60, 13).splitlines()
    assert all(any(one.startswith(f"gpu:{n} ") for one in lines) for n in range(min(gpus, 3)))
    if gpus == 8:
        assert sum(one.startswith("gpu:") for one in lines) == 8


def test_nothing_is_cut_in_the_table_at_any_width() -> None:
    """A cut number is a wrong number."""
    for shown in (idle(box(8)), sick(), idle(box(64))):
        for width in range(40, 260, 3):
            lines = painted(shown, width, 37).splitlines()
            table = [
                one
                for one in lines
                if one.strip("│ ").startswith(("gpu:", "device  state"))
                and "python" not in one
                and "VLLM" not in one
            ]
            figures = [one for one in table if "lost" not in one]
            assert figures and not any("…" in one for one in figures if width >= 60), (
                width,
                figures,
            )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_figures_of_a_machine_without_a_gpu_are_whole(width: int) -> None:
    """A cut number is a wrong number."""
    shown = idle(box(1))
    cpu = tuple(device for device in shown.devices if not device.is_gpu)
    shown = msgspec.structs.replace(shown, devices=cpu, device="cpu")
    rows = paint_overview(shown, [], lambda key, columns: [0.5] * columns, width, 33).rows
    assert all(row_width(row) == width for row in rows)
    told = "\n".join("".join(text for text, _ in row) for row in rows)
    assert "3.2 of 96  " in told and "5.10/16.0 GiB  " in told and "w 1.20 MB/s  " in told
