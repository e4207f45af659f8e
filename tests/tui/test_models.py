"""The models screen, several processes on the main screen, and lists of many knobs and
scenarios."""

from __future__ import annotations

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from gpuconsole.engine import catalog
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.machine import Device
from gpuconsole.report.cells import Row
from gpuconsole.report.run.models import entries, error, model_lines
from gpuconsole.session.api import View
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.knobs import KnobsScreen
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.pages import ModelsScreen
from gpuconsole.tui.screens.processes import ProcessesScreen
from gpuconsole.tui.screens.scenarios import ScenariosScreen, scenario_lines
from tests.tui.fake_gpu_box import drawn
from tests.tui.fake_models import FIGURES, LONG_NOTE, several_view
from tests.tui.fake_session import H200, FakeSession, gpu_view, view
from tests.tui.test_app import on_screen, shows, text_of
from tests.waiting import until


def lines(rows: list[Row]) -> list[str]:
    return ["".join(part for part, _ in row).rstrip() for row in rows]


def test_m_opens_the_models_and_what_is_behind_the_chosen_row() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("m")
        await until(lambda: isinstance(app.screen, ModelsScreen))
        await shows(app, "20 numbers, 2 processes; rank 1 is the slowest, 2.29x the others")
        await shows(app, "4 B x parameters")
        await pilot.press("down")
        await shows(app, "6 N + 12 L d T a token")
        await pilot.press("down")
        await shows(app, LONG_NOTE[-30:])
        await pilot.press("end")
        await shows(app, "rank 1 on gpubox-07, process 4001")
        await shows(app, "backward 70 % 70.0 ms")
        await pilot.resize_terminal(80, 24)
        await shows(app, "slowest 2.29x")
        await pilot.press("home")
        await shows(app, "> Parameters")
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(several_view(), body)


def test_predicted_measured_and_error_stand_in_columns_with_their_units() -> None:
    shown = lines(drawn(model_lines(several_view(), 120, 40), 120, 40))
    head = shown[0]
    by_title = {
        figure.title: next(row for row in shown if figure.title in row) for figure in FIGURES[:5]
    }
    for words, title in (
        (("7.91 MiB", "7.91 MiB", "+0.0 %"), "Parameters"),
        (("736 MFLOP", "700 MFLOP", "+5.1 %"), "Model FLOPs of a sample"),
    ):
        assert [by_title[title].count(word) for word in words] == [
            2 if words.count(word) == 2 else 1 for word in words
        ]
    assert error(msgspec.structs.replace(FIGURES[0], predicted=1e12)) == ">999x"
    assert "200x" in by_title["Tokens/s of a device, against published"]
    assert by_title["MFU: FLOPs over the peak"].split()[5:9] == ["31.0", "%", "n/a", "not"]
    assert {
        row.rindex("%") for row in (by_title["Parameters"], by_title["Model FLOPs of a sample"])
    } == {head.index("error") + 4}


@pytest.mark.parametrize(("width", "height"), [(120, 37), (80, 21), (40, 9)])
@pytest.mark.parametrize("count", [2, 64])
def test_the_chosen_row_is_always_in_sight(width: int, height: int, count: int) -> None:
    shown = several_view(count)
    content = model_lines(shown, width, height)
    keys = [key for key in content.keys if key is not None]
    assert len(keys) == len(entries(shown.run))
    for key in keys:
        rows = lines(drawn(content, width, height, key))
        assert len(rows) == height
        assert sum(row.startswith("> ") for row in rows) == 1


def test_without_figures_it_says_why() -> None:
    def words(shown: View) -> str:
        return " ".join(" ".join(lines(drawn(model_lines(shown, 80, 20), 80, 20))).split())

    assert "Nothing is running" in words(view())
    assert "No numbers yet" in words(gpu_view())
    ended = msgspec.structs.replace(gpu_view().runs[-1], state="finished")
    assert "This run has no numbers" in words(view(runs=(ended,)))
    strange = msgspec.structs.replace(
        ended, unavailable={"models": "the models cannot take this run's values: 'many'"}
    )
    assert "cannot take this run's values: 'many'" in words(view(runs=(strange,)))


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_the_main_screen_tells_how_many_processes_and_how_far_they_lie_apart(
    size: tuple[int, int],
) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await shows(app, "2 processes")
        await shows(app, "step of rank 0: ")
        await shows(app, "without communication: rank 1 90.0 ms, rank 0 40.0 ms")
        api.shown = several_view(8)
        await shows(app, "8 processes")
        await shows(app, "rank 1 90.0 ms, the median of the other 7 40.0 ms")
        api.shown = gpu_view()
        await until(lambda: "processes" not in text_of(app).splitlines()[0])
        assert "without communication" not in text_of(app)

    on_screen(several_view(), body, size)


def many_knobs() -> View:
    """A run that has every knob there is; three are not at their default."""
    values: Knobs = {
        name: knob.default if knob.default is not None else 8 for name, knob in CATALOGUE.items()
    }
    values |= {"optim": "sgd", "eval_every": 50}
    shown = gpu_view()
    run = msgspec.structs.replace(
        shown.runs[-1],
        knobs=values,
        unavailable={"knob.bucket_cap_mb": "one process exchanges nothing"},
    )
    return msgspec.structs.replace(shown, runs=(run,))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_of_many_knobs_those_that_were_set_come_first_and_a_filter_finds_the_others(
    size: tuple[int, int],
) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S")
        await shows(app, f"3 set, {len(CATALOGUE) - 3} at their default")
        rows = text_of(app).splitlines()
        first = next(n for n, row in enumerate(rows) if row.startswith("> batch_size"))
        assert [row.split()[0] for row in rows[first + 1 : first + 3]] == ["optim", "eval_every"]
        assert "default values:" in rows[first + 3]
        await pilot.press("end")
        await shows(app, f"> {list(CATALOGUE)[-1]}")
        await pilot.press("slash", *"bucket", "enter")
        await shows(app, "> bucket_cap_mb")
        await shows(app, "one process exchanges nothing")
        assert "batch_size" not in text_of(app)
        await pilot.press("enter", *["backspace"] * 4, "5", "enter")
        await shows(app, "25 -> 5")
        await pilot.press("escape")
        await shows(app, "comm_hook")
        await shows(app, "> bucket_cap_mb")
        await pilot.press("slash", *"no such knob")
        await shows(app, "No setting matches.")
        await pilot.press("escape", "escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(many_knobs(), body, size)


def test_a_knob_stays_chosen_when_its_row_moves() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S", "j")
        await shows(app, "> optim")
        run = msgspec.structs.replace(
            api.shown.runs[-1], knobs={**api.shown.runs[-1].knobs, "optim": "adamw_fused"}
        )
        api.shown = msgspec.structs.replace(api.shown, runs=(run,))
        await until(
            lambda: any(
                row.startswith("> optim") and "adamw_fused" in row
                for row in text_of(app).splitlines()
            )
        )

    on_screen(many_knobs(), body)


def test_a_typed_value_never_goes_to_another_knob_than_the_one_that_is_edited() -> None:
    """A model server that restarts reports no settings for a while: the edited knob leaves the
    list, and a neighbour is selected."""

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        before = api.shown
        await pilot.press("S")
        await shows(app, "> batch_size")
        await pilot.press("enter", "backspace", "1", "6")
        await shows(app, "allowed: int 1..65536")
        knobs = {
            name: value for name, value in before.runs[-1].knobs.items() if name != "batch_size"
        }
        api.shown = msgspec.structs.replace(
            before, runs=(msgspec.structs.replace(before.runs[-1], knobs=knobs),)
        )
        await shows(app, "> log_every")
        assert "batch_size = 16" in text_of(app), "the line says what is edited"
        await pilot.press("enter")
        await shows(app, "the run has no such setting now")
        assert "1 -> 16" not in text_of(app)
        api.shown = before
        await shows(app, "> batch_size")
        await pilot.press("enter")
        await shows(app, "batch_size 8 -> 16")
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(gpu_view(), body)


@pytest.mark.parametrize(("width", "height"), [(120, 35), (80, 19)])
@pytest.mark.parametrize("device", [Device("cpu", "host CPU"), H200], ids=lambda device: device.id)
def test_every_scenario_of_ours_is_shown_whole(width: int, height: int, device: Device) -> None:
    """The list with the chosen one in sight, its title, and its description to the last line, as
    where there is room enough."""
    ours = list(catalog.scenarios()[0].values())
    for scenario in ours:
        rows = lines(
            drawn(scenario_lines(ours, device, width, height), width, height, scenario.name)
        )
        assert any(
            row.startswith(f"> {scenario.name}") and scenario.title in row for row in rows
        ), scenario.name
        whole = scenario_lines(ours, device, width, 80)
        about = [row for row in lines((whole.side or whole.foot)(scenario.name)) if row.strip()]  # type: ignore[misc]
        assert any(row.endswith(about[-1]) for row in rows), scenario.name


def at_once(app: ConsoleApp, keys: str) -> None:
    """Keys as a slow line delivers them: many before the first has been dealt with. `<` is
    Backspace, a line's end Enter."""
    names = {"/": "slash", "\n": "enter", "<": "backspace", " ": "space"}
    for key in keys:
        app.post_message(events.Key(names.get(key, key), None if key in "\n<" else key))


def typed(app: ConsoleApp) -> str:
    """What is in the text field; empty while there is none."""
    return next((field.value for field in app.screen.query(Input)), "")


def test_keys_that_come_faster_than_the_focus_moves_are_not_lost_and_mean_nothing_else() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("s")
        await until(lambda: isinstance(app.screen, ScenariosScreen))
        at_once(app, "/qstarved")  # a q would end everything
        await until(lambda: typed(app) == "qstarved")
        at_once(app, "<" * 8)
        await until(lambda: not typed(app))
        at_once(app, "logging\n")
        await until(lambda: ("start", "logging-heavy", {}) in api.calls)
        await pilot.press("S")
        await until(lambda: isinstance(app.screen, KnobsScreen))
        at_once(app, "\n16\n")
        await shows(app, "8 -> 16")
        at_once(app, "/bucket\n")
        await shows(app, "> bucket_cap_mb")
        await pilot.press("escape", "escape", "p")
        await until(lambda: isinstance(app.screen, ProcessesScreen))
        at_once(app, "/kick")  # k alone would ask for a signal
        await until(lambda: typed(app) == "kick")

    on_screen(many_knobs(), body)
