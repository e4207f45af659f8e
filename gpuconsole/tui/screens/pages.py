"""The screens that only show a report: findings in detail, tuning, profile, models, history,
help."""

from __future__ import annotations

from textual.app import ComposeResult

from gpuconsole.model import units
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.metrics import series_key
from gpuconsole.report import charts
from gpuconsole.report.cells import Row, blank, fill, line
from gpuconsole.report.experiments import paint_tuning
from gpuconsole.report.page import Lines, heading, labelled, paragraph, text_lines
from gpuconsole.report.run.diagnosis import paint_details
from gpuconsole.report.run.models import model_lines, summary
from gpuconsole.report.run.profile import paint_choice, paint_profile
from gpuconsole.report.screen.chart import paint_throughput
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.screens.base import BackScreen, ListScreen, PageScreen
from gpuconsole.tui.widgets.bars import DrawnZone


class DetailsScreen(PageScreen):
    """All findings with their evidence, and what to do about them."""

    NAME = "details"
    TITLE_TEXT = "Details"

    def paint(self, view: View, width: int) -> list[Row]:
        return paint_details(view, width)


class TuningScreen(PageScreen):
    """The tree of a tuning session, and the throughput with a mark at each trial where there is
    room. Escape leaves the session under way."""

    NAME = "tuning"
    TITLE_TEXT = "Tuning"
    MIN_CHART = 7

    def paint(self, view: View, width: int) -> list[Row]:
        return paint_tuning(view, width)

    def lines(self, width: int, height: int) -> Lines:
        rows = [*self.paint(self._view, width), blank(width)]
        if self._view.run is not None and (room := height - len(rows)) >= self.MIN_CHART:
            rows += paint_throughput(self._view, self.api.history, width, room)
        return text_lines(rows)

    def action_begin(self) -> None:
        self.actions.tune()


class ProfileScreen(PageScreen):
    """A profiler window of the run. Opening the screen takes one where the run has none; the
    screen's key takes another one. In a user's job of several processes only the key takes one, of
    the process that is chosen here: the others wait for it."""

    NAME = "profile"
    TITLE_TEXT = "Profile"

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._painted: tuple[object, int, list[Row]] = (None, 0, [])
        self._rank = 0

    def on_mount(self) -> None:
        super().on_mount()
        run = self._view.run
        if (
            run is not None
            and run.state == "running"
            and run.profile is None
            and not self._view.recording
            and not keys.has_ranks(self._view)
        ):
            self.again()

    def again(self) -> None:
        self.actions.take_profile(self._rank)

    def action_previous_rank(self) -> None:
        self._choose(self._rank - 1)

    def action_next_rank(self) -> None:
        self._choose(self._rank + 1)

    def _choose(self, rank: int) -> None:
        """Choose a process of the job; after the last comes the first."""
        self._rank = rank % facts.processes(self._view.run)
        self.show(self._view)

    def paint(self, view: View, width: int) -> list[Row]:
        if not keys.has_ranks(view) or view.recording or view.probing == "profiler":
            return self._profile(view, width)
        return [
            *paint_choice(self._rank, facts.processes(view.run), width),
            blank(width),
            *self._profile(view, width),
        ]

    def _profile(self, view: View, width: int) -> list[Row]:
        """The rows of the present profile, which are costly: drawn once for a profile and a
        width."""
        source, painted_width, rows = self._painted
        if source != _profile_state(view) or painted_width != width:
            rows = paint_profile(view, width)
            self._painted = _profile_state(view), width, rows
        return rows


def _profile_state(view: View) -> object:
    """What the profile page depends on."""
    run = view.run
    return (
        (run.id, run.state, run.profile, run.unavailable.get("profile"), view.probing)
        if run is not None
        else view.probing
    )


class ModelsScreen(ListScreen):
    """The analytical models beside the measurement. The formula and the source of the selected row
    are below the table."""

    NAME = "models"
    TITLE_TEXT = "Models and measurement"
    FILTER = "only rows with these words"
    SIFTED = True

    def lines(self, width: int, height: int) -> Lines:
        return model_lines(self._view, width, height)

    def summary(self) -> str:
        return summary(self._view.run)


class HelpScreen(PageScreen):
    """Keys, and how to read the screen."""

    NAME = "help"
    TITLE_TEXT = "Help"

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._painted: tuple[int, list[Row]] = (0, [])

    def paint(self, view: View, width: int) -> list[Row]:
        """The page does not change, so it is drawn once for a width."""
        if self._painted[0] != width:
            self._painted = width, paint_help(width)
        return self._painted[1]


READING = (
    (
        "step",
        (
            "The time of a step and its parts. The parts exclude each other and add up to the whole"
            " step. Yellow: waiting."
        ),
    ),
    (
        "request",
        (
            "Queue, prefill and decode as the server reports them; transport is the rest of the E2E"
            " that the client measures."
        ),
    ),
    (
        "recoverable",
        (
            "The share of the step time that a finding is about. Findings are ranked by this share"
            " and by their confidence."
        ),
    ),
    (
        "instead",
        (
            "The same for a finding that claims the same time as another: one of these cures frees"
            " it, so the shares do not add up."
        ),
    ),
    (
        "of memory",
        (
            "The share of the usable memory that the first suggestion would free. Freeing memory"
            " may cost time."
        ),
    ),
    (
        "predicted",
        (
            "Throughput after the change divided by throughput before, as an interval, from the"
            " measured parts of a step."
        ),
    ),
    (
        "trial",
        (
            "Steps with and without the change alternate in random order. The speedup is the ratio"
            " of both with its 95 % interval."
        ),
    ),
    (
        "kept, reverted",
        "The verdict of a trial. 'no trial' is a change that was applied without a trial.",
    ),
    (
        "vs baseline",
        (
            "Throughput compared with the runs kept for this scenario, hardware and software. Red:"
            " slower beyond noise."
        ),
    ),
    (
        "TTFT, TPOT, E2E",
        "Sent to first token; (E2E - TTFT) / (output tokens - 1); sent to last token.",
    ),
    ("ITL", "The gap between tokens: a chunk of k tokens is k gaps of gap/k."),
    (
        "rank",
        (
            "One of several processes that train together. Step time without communication is the"
            " rank's own; the rest is waiting for other ranks."
        ),
    ),
    (
        "SM, GPU-Util",
        (
            "SM: the share of time in which an SM had work, averaged over all SMs. GPU-Util of"
            " nvidia-smi: the share of time in which any kernel ran. One small kernel on one SM"
            " makes 100 % of it."
        ),
    ),
    (
        "551/700 W, 49/87°",
        "Power and its limit; the temperature, and that at which the hardware lowers its clocks.",
    ),
    (
        "mem rw, RSS, K",
        (
            "Of a process: the share of time in which it reads or writes device memory; its host"
            " memory; its kind, compute (C) or graphics (G)."
        ),
    ),
    (
        "job",
        (
            "Processes on GPUs with one launcher, notebook or other program that started them."
            " listens :8123: an unknown program that listens at that port."
        ),
    ),
    ("n/a", "The hardware or the driver does not report the value. The reason stands beside it."),
    ("CPU (no NVIDIA GPU)", "All numbers belong to the host. No number is GPU data."),
    (
        "throughput",
        (
            "Since the start of the work. ▼ marks a change: on trial, kept or reverted. Lines show"
            " where a trial begins and ends; 'changed' marks its blocks with the change. Green:"
            " with a change that was kept."
        ),
    ),
    (
        "sparklines",
        (
            "A column is at most two seconds, the newest at the right. Without a workload it is up"
            " to ten seconds, to show 90 seconds. A gap is a time without samples. Brighter is"
            " higher."
        ),
    ),
)
_SCREENS = (
    ("machine", "While nothing runs"),
    ("scenarios", "On the scenario list"),
    ("knobs", "On the settings screen"),
    ("processes", "On the processes screen"),
    ("jobs", "On the jobs screen"),
    ("device", "On the device screen"),
    ("topology", "On the links screen"),
    ("profile", "On the profile screen"),
    ("tuning", "On the tuning screen"),
    ("output", "On the output screen"),
    ("leave_job", "On a question about your own job"),
    ("value", "While a value is edited"),
    ("filter", "While a filter is typed"),
    ("line", "While a line for the job is typed"),
)
_MOVES = (
    (
        "arrows, Tab",
        (
            "Move; in lists and pages j and k, too. g, G: the first and the last line; in some"
            " lists, g groups."
        ),
    ),
    ("/, Esc", "Only lines with the words typed. Esc: back, also out of a text field or a filter."),
    (
        "click",
        (
            "Press a key in the bar, select a line or a finding, or open the history of a metric."
            " Shift and drag: select text."
        ),
    ),
)


def paint_help(width: int) -> list[Row]:
    """The keys of `keys.ACTIONS`, and what the words on the screen mean."""
    column = 20 if width >= 60 else 12
    rows = paragraph(
        (
            "Run a job, see where its time goes, change one setting, and measure whether the change"
            " helped."
        ),
        width,
    )
    rows += [blank(width), heading("Keys", width)]
    replay = keys.of_replay()
    for action in keys.ACTIONS:
        if (
            (not action.screens or "main" in action.screens)
            and action not in replay
            and action.id not in _MOVE_IDS
        ):
            rows += labelled(f"  {action.written}", action.help, width, column)
    for written, text in _MOVES:
        rows += labelled(f"  {written}", text, width, column)
    rows += [blank(width), heading("Reading the screen", width)]
    for word, text in READING:
        rows += labelled(f"  {word}", text, width, column)
    for title, actions in [
        ("On the main screen of a recording", replay),
        *((title, keys.on(screen)) for screen, title in _SCREENS),
    ]:
        rows += [blank(width), heading(title, width)]
        for action in actions:
            if action.id not in _MOVE_IDS:
                rows += labelled(f"  {action.written}", action.help, width, column)
    return rows


_MOVE_IDS = (
    "choose_previous",
    "choose_next",
    "choose_first",
    "choose_last",
    "up",
    "down",
    "page_up",
    "page_down",
    "first",
    "last",
    "back",
)


class HistoryScreen(BackScreen):
    """Throughput of the current work over time above, on the clock of the main screen, the
    distribution of step times (or of requests' E2E) below. The charts do not follow the session."""

    NAME = "history"
    TITLE_TEXT = "History"

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._charts = DrawnZone(self._draw)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._charts
        yield self._key_bar

    def redraw(self) -> None:
        self._charts.repaint()

    def _draw(self, width: int, height: int) -> list[Row]:
        view = self.api.view()
        metric, unit = facts.throughput_metric(view)
        begun = facts.begun_s(view)
        points = [
            (t - begun, value)
            for t, value in zip(*self.api.points(series_key(metric, view.device)), strict=True)
            if t >= begun
        ]
        times, values = [t for t, _ in points], [value for _, value in points]
        self._heading.say(f"at {units.clock(facts.clock_s(view))}; ctrl+l draws again")
        serves = view.run is not None and view.run.serves
        upper, lower = height - height // 2, height // 2
        if len(times) >= 2:
            rows = charts.throughput(times, values, _changes(view, begun), unit, width, upper)
        else:
            rows = [line(width, "No throughput measured yet.")]
        rows = fill(rows, width, upper)
        if len(view.step_times) >= 2:
            what = "E2E of {} recent requests" if serves else "step times of {} recent steps"
            return fill(
                rows + charts.step_times(view.step_times, width, lower, what), width, height
            )
        return fill(
            [*rows, line(width, f"No {'requests' if serves else 'steps'} measured yet.")],
            width,
            height,
        )


def _changes(view: View, begun: float) -> list[tuple[float, str]]:
    """When the settings were changed in the current work, on its clock, and to what."""
    runs = zip(view.runs, view.run_times, strict=False)
    return [
        (t - begun, describe_changes(run.changes) or run.scenario) for run, t in runs if t > begun
    ]
