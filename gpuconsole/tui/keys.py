"""The one table of actions and keys. Textual's bindings, the key bars, the help page and the
command palette are made from it.

A letter has the same meaning on every screen, but for two: `g` groups in some lists, and `j`, which
is a line down in lists and pages as in many programs, opens the jobs on the main screen. An action
that belongs to some screens has a key that no other action uses there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gpuconsole.diagnosis.engine import probes_waiting
from gpuconsole.model.knobs.knob import nearest
from gpuconsole.session import facts
from gpuconsole.session.api import View

if TYPE_CHECKING:
    from textual.binding import BindingType


def _always(view: View) -> bool:
    return True


def _live(view: View) -> bool:
    return not view.recording


def _has_run(view: View) -> bool:
    return view.run is not None


def _running(view: View) -> bool:
    return not view.recording and facts.active(view)


def trial_runs(view: View) -> bool:
    """Whether there is a trial to cancel: it runs, or was asked for and has not begun."""
    return not view.recording and (facts.running_trial(view) is not None or bool(view.asked))


def _can_try(view: View) -> bool:
    return _running(view) and not trial_runs(view) and bool(facts.suggestions(view))


def _has_suggestion(view: View) -> bool:
    return bool(facts.suggestions(view))


def _can_revert(view: View) -> bool:
    return _running(view) and bool(view.undo)


def _can_stop(view: View) -> bool:
    return not view.recording and (facts.active(view) or tuning(view))


def _has_gpu(view: View) -> bool:
    return any(device.is_gpu for device in view.devices)


def _has_links(view: View) -> bool:
    return sum(device.is_gpu and not device.is_mig for device in view.devices) > 1


def _is_job(view: View) -> bool:
    """Whether the run is a job of the user's own, live."""
    return not view.recording and view.run is not None and view.run.is_job


def has_ranks(view: View) -> bool:
    """Whether the run is a job of the user's own, live, in several processes."""
    return _is_job(view) and facts.processes(view.run) > 1


def _may_allow_probes(view: View) -> bool:
    """Whether rules wait for probes that the user has not allowed yet in the user's own job."""
    return _is_job(view) and _running(view) and bool(probes_waiting(view.run))


def _may_probe(view: View) -> bool:
    """Whether the user may allow probes in a job, or send one to a server that is watched and
    answers."""
    watches = (
        view.run is not None
        and view.run.watched
        and _running(view)
        and view.run.state == "running"
        and not view.down
    )
    return _may_allow_probes(view) or watches


def may_start(view: View) -> bool:
    """Whether a scenario may start: not while the user's own job runs."""
    return not view.recording and not (_is_job(view) and facts.active(view))


def _plays(view: View) -> bool:
    """Whether the view is a moment of a recording that plays."""
    return view.playback is not None


def tuning(view: View) -> bool:
    """Whether a tuning session is under way."""
    return view.tuning is not None and view.tuning.under_way


def _may_change(view: View) -> bool:
    """Whether a run is active that keeps changes: a server that is only watched keeps none."""
    return _running(view) and not (view.run is not None and view.run.watched)


def _may_tune(view: View) -> bool:
    return _may_change(view) and not tuning(view)


class Action(NamedTuple):
    """Something that a key does.

    `keys` are Textual's names, separated by commas. `label` is the word in the key bar, and the
    name in the command palette; an action without a label is not in the bar. `screens`: where the
    key works; empty: everywhere. `makes_sense`: whether the key bar shows the key for this state.
    `bar`: how the key bar and the help write the key. `of_app`: a method of `actions.Actions` does
    it, and not one of the screen.
    """

    id: str
    keys: str
    label: str
    help: str
    screens: tuple[str, ...] = ()
    makes_sense: Callable[[View], bool] = _always
    bar: str = ""
    of_app: bool = False

    @property
    def written(self) -> str:
        """The keys as a reader sees them."""
        return (
            "0-9"
            if self.keys == DIGITS
            else ", ".join(_WRITTEN.get(key, key) for key in self.keys.split(","))
        )

    @property
    def command(self) -> str:
        """What Textual runs for a key of the action, on the screen in sight."""
        return f"app.do('{self.id}')" if self.of_app or not self.screens else self.id

    @property
    def title(self) -> str:
        """The name in the command palette."""
        name = self.label or self.id.replace("_", " ")
        return name[:1].upper() + name[1:]


DIGITS = ",".join("0123456789")
"""The keys of an action that gets the digit."""
LISTS = (
    "scenarios", "knobs", "processes", "jobs", "device", "models", "topology", "leave_job",
    "consent",
)  # fmt: skip
PAGES = ("details", "profile", "tuning", "help", "process", "output")
"""`process` is one process in full, on the screen of the processes."""
SUB_SCREENS = (*LISTS, *PAGES, "history")
MACHINE = "machine"
"""The main screen while nothing runs: the table of the GPUs has the keys of a list."""
FIELDS = ("value", "filter", "choice", "line")
"""Text fields on a screen: the value of a setting, the filter of a list, the filter of the list of
scenarios, a line for a job. While one is open, letters go into it."""
FIXED = ("accept", "discard", "jump", "device_number")
"""Actions whose keys are those of a text field, or digits."""
GROUPED = ("processes", "topology")
"""The lists in which `g` groups."""
_WRITTEN = {
    "enter": "Enter", "escape": "Esc", "question_mark": "?", "slash": "/", "pageup": "pgup",
    "pagedown": "pgdn", "plus": "+", "minus": "-", "equals_sign": "=",
}  # fmt: skip


def _but(screens: tuple[str, ...], *others: str) -> tuple[str, ...]:
    """`screens` without `others`."""
    return tuple(screen for screen in screens if screen not in others)


ACTIONS: tuple[Action, ...] = (
    # --- every screen; the most wanted first ------------------------------------------------------
    Action("quit", "q", "quit", "Leave a screen. On the main screen: save the session and quit."),
    Action(
        "interrupt",
        "ctrl+c",
        "interrupt the job",
        "Quit. With a job of your own: SIGINT to the job, then SIGTERM, then SIGKILL.",
        makes_sense=lambda view: _is_job(view) and facts.active(view),
    ),
    Action(
        "scenarios",
        "s",
        "scenarios",
        "Choose a scenario and start it. The numbers of the current run stay.",
        makes_sense=may_start,
    ),
    Action(
        "try_selected",
        "enter",
        "try",
        "Try the selected change in paired blocks, and keep it if it is faster.",
        ("main",),
        _can_try,
    ),
    Action(
        "copy",
        "y",
        "copy code",
        "Copy the code of the selected suggestion (OSC 52).",
        makes_sense=_has_suggestion,
    ),
    Action(
        "cancel_trial",
        "escape",
        "cancel",
        "Cancel the trial: the change is reverted, the run goes on.",
        ("main",),
        trial_runs,
    ),
    Action(
        "tuning",
        "t",
        "tune",
        "Try the suggested changes one by one, and keep those that are faster.",
        makes_sense=_may_change,
    ),
    Action(
        "details",
        "d",
        "details",
        "Findings with their evidence, and code for your own program.",
        makes_sense=_has_run,
    ),
    Action(
        "output",
        "o",
        "output",
        "The output of your own job, the last 10 000 lines.",
        makes_sense=_is_job,
    ),
    Action(
        "probes",
        "P",
        "probe",
        "Allow probes in your own job, or send requests to a watched server. It asks first.",
        ("main",),
        _may_probe,
    ),
    Action(
        "device",
        "i",
        "device",
        "Every metric of the selected device with its value, unit and source.",
    ),
    Action(
        "processes",
        "p",
        "processes",
        "Processes on the GPUs: sort, filter, group, send a signal.",
        makes_sense=_has_gpu,
    ),
    Action(
        "jobs",
        "j",
        "jobs",
        "Show the jobs on the GPUs: the user, age, GPUs and kind of each.",
        ("main", MACHINE),
        makes_sense=_has_gpu,
        of_app=True,
    ),
    Action("help", "question_mark,f1", "help", "Keys, and how to read the screen.", bar="?"),
    Action(
        "history",
        "h",
        "history",
        "Throughput over time with the changes, and the distribution of step times.",
        makes_sense=_has_run,
    ),
    Action(
        "models",
        "m",
        "models",
        "FLOPs, memory, bandwidth, communication: by formula and as measured.",
        makes_sense=_has_run,
    ),
    Action(
        "profile",
        "f",
        "profile",
        "Profile a few steps: time by kernel class, a roofline, a trace for Perfetto.",
        makes_sense=_has_run,
    ),
    Action(
        "knobs",
        "S",
        "settings",
        "Edit the settings of the run: apply them at once or try them.",
        makes_sense=_has_run,
    ),
    Action(
        "revert",
        "u",
        "take back",
        "Undo the last change that was kept, or applied without a trial.",
        makes_sense=_can_revert,
    ),
    Action(
        "stop", "x", "stop", "End the tuning session, otherwise the run.", makes_sense=_can_stop
    ),
    Action(
        "topology",
        "l",
        "links",
        "Links between the GPUs, with NUMA nodes and CPUs.",
        makes_sense=_has_links,
    ),
    Action(
        "baseline",
        "b",
        "baseline",
        "Keep the run as a baseline for later runs.",
        makes_sense=lambda view: _live(view) and _has_run(view),
    ),
    Action("record", "r", "record", "Start or end a recording of the session.", makes_sense=_live),
    Action(
        "control",
        "c",
        "take control",
        "Take the control back from an agent (--control); again: let agents in.",
        makes_sense=lambda view: bool(view.remote),
    ),
    Action(
        "export", "e", "export", "Write a snapshot (JSON) of the session.", makes_sense=_has_run
    ),
    # --- some screens -----------------------------------------------------------------------------
    Action(
        "numerics",
        "N",
        "allow changes",
        "Allow new loader workers, or other numbers (TF32), in a job of your own. Asks again.",
        ("main",),
        lambda view: _is_job(view) and _running(view),
    ),
    Action("choose_previous", "up,shift+tab", "", "Select the suggestion above.", ("main",)),
    Action("choose_next", "down,tab", "", "Select the suggestion below.", ("main",)),
    Action("choose_first", "home,g", "", "Select the first suggestion.", ("main",)),
    Action("choose_last", "end,G", "", "Select the last suggestion.", ("main",)),
    Action(
        "pause",
        "space",
        "pause",
        "Pause the recording, or go on. At its end: play it again.",
        ("main",),
        _plays,
        of_app=True,
    ),
    Action(
        "rewind", "left", "", "Five seconds of the recording back.", ("main",), _plays, of_app=True
    ),
    Action(
        "forward",
        "right",
        "5 s",
        "Five seconds of the recording forward.",
        ("main",),
        _plays,
        bar="left/right",
        of_app=True,
    ),
    Action(
        "jump",
        DIGITS,
        "jump",
        "Jump in the recording: 0 is its beginning, 5 its middle.",
        ("main",),
        _plays,
        of_app=True,
    ),
    Action("slower", "minus", "", "Play the recording slower.", ("main",), _plays, of_app=True),
    Action(
        "faster",
        "plus,equals_sign",
        "speed",
        "Play the recording faster.",
        ("main",),
        _plays,
        bar="+/-",
        of_app=True,
    ),
    Action("start", "enter", "start", "Start the selected scenario.", ("scenarios", "choice")),
    Action(
        "edit", "enter", "edit", "Edit the value of the selected setting.", ("knobs",), _running
    ),
    Action(
        "apply",
        "a",
        "apply",
        "Apply the edited values at once, without a trial.",
        ("knobs",),
        _running,
    ),
    Action("prove", "v", "try", "Try the edited values in a trial.", ("knobs",), _running),
    Action(
        "forget",
        "backspace,delete",
        "forget",
        "Forget the edited value of the selected setting.",
        ("knobs",),
        _running,
        bar="backspace",
    ),
    Action(
        "accept", "enter", "accept", "Take the value that was typed, if it is allowed.", ("value",)
    ),
    Action("accept", "enter", "keep the filter", "Back to the list, with the filter.", ("filter",)),
    Action("accept", "enter", "send", "Send the line.", ("line",)),
    Action("inspect", "enter", "command", "Show the selected process in full.", ("processes",)),
    Action(
        "open_job",
        "enter",
        "open",
        "Watch the selected server if nothing runs here. Otherwise show the job's processes.",
        ("jobs",),
    ),
    Action(
        "open_processes",
        "enter",
        "its processes",
        "Show the processes on the selected GPU; i shows its metrics.",
        (MACHINE,),
        _has_gpu,
    ),
    Action(
        "find",
        "slash",
        "find",
        "Find processes by a word, a pid, a user or the name of a GPU.",
        (MACHINE,),
        _has_gpu,
    ),
    Action(
        "begin",
        "enter",
        "begin",
        "Start a tuning session on the current run.",
        ("tuning",),
        makes_sense=_may_tune,
    ),
    Action("type", "enter", "type", "Type a line for the stdin of the job.", ("output",)),
    Action(
        "choose", "enter", "choose", "Do what the selected line says.", ("leave_job", "consent")
    ),
    Action(
        "device_number",
        DIGITS,
        "number",
        "Show the GPU of this number; type both digits of 40 within a second.",
        ("device",),
    ),
    Action(
        "filter",
        "slash",
        "filter",
        "Show only lines that contain the words typed.",
        (
            "scenarios",
            "knobs",
            "processes",
            "jobs",
            "output",
            "models",
            "topology",
            "details",
            "profile",
            "tuning",
            "help",
        ),
    ),
    Action(
        "filter",
        "slash",
        "filter",
        "Show the device whose name is typed, or only metrics with the words typed.",
        ("device",),
    ),
    Action(
        "interrupt_process",
        "I",
        "SIGINT",
        "Interrupt the selected process, as Ctrl-C does. A question comes first.",
        ("processes", "process"),
        _live,
    ),
    Action(
        "terminate",
        "T",
        "SIGTERM",
        "Ask the selected process to end. A question comes first.",
        ("processes", "process"),
        _live,
    ),
    Action(
        "kill",
        "K",
        "SIGKILL",
        "Kill the selected process. A question comes first.",
        ("processes", "process"),
        _live,
    ),
    Action("sort_previous", "left", "", "Sort by the column on the left.", ("processes", MACHINE)),
    Action(
        "sort_next",
        "right",
        "sort",
        "Sort by the column on the right.",
        ("processes", MACHINE),
        bar="left/right",
    ),
    Action("reverse", "R", "reverse", "Reverse the order.", ("processes", MACHINE)),
    Action(
        "group",
        "g",
        "group",
        "Group processes under their parents, or GPUs that are linked alike.",
        GROUPED,
    ),
    Action("previous_device", "left,shift+tab", "", "Show the device on the left.", ("device",)),
    Action(
        "next_device",
        "right,tab",
        "device",
        "Show the device on the right.",
        ("device",),
        bar="left/right",
    ),
    Action(
        "previous_rank",
        "left",
        "",
        "Choose the process before, of a job of several.",
        ("profile",),
        has_ranks,
    ),
    Action(
        "next_rank",
        "right",
        "process",
        "Choose the next process, of a job of several.",
        ("profile",),
        has_ranks,
        bar="left/right",
    ),
    Action("left", "left", "", "Scroll to the left.", ("topology",)),
    Action("right", "right", "scroll", "Scroll to the right.", ("topology",), bar="left/right"),
    Action("up", "up,k,shift+tab", "", "One line up.", _but((*LISTS, *PAGES), "device")),
    Action("up", "up,k", "", "One line up.", ("device",)),
    Action("up", "up,shift+tab", "", "One line up.", (MACHINE,)),
    Action(
        "down",
        "down,j,tab",
        "select",
        "One line down.",
        _but((*LISTS, *FIELDS[1:3]), "device"),
        bar="up/down",
    ),
    Action("down", "down,tab", "select", "One line down.", (MACHINE,), bar="up/down"),
    Action("down", "down,j", "select", "One line down.", ("device",), bar="up/down"),
    Action("down", "down,j,tab", "scroll", "One line down.", PAGES, bar="up/down"),
    Action("page_up", "pageup", "", "One page up.", (*LISTS, *PAGES, MACHINE)),
    Action("page_down", "pagedown,space", "", "One page down.", (*LISTS, *PAGES, MACHINE)),
    Action("first", "home,g", "", "To the first line.", _but((*LISTS, *PAGES, MACHINE), *GROUPED)),
    Action("first", "home", "", "To the first line: g groups here.", GROUPED),
    Action("last", "end,G", "", "To the last line.", (*LISTS, *PAGES, MACHINE)),
    Action("discard", "escape", "discard", "Leave the value as it was.", ("value",)),
    Action("discard", "escape", "all lines", "End the filter.", ("filter", "choice")),
    Action("discard", "escape", "back", "Send nothing.", ("line",)),
    Action("back", "escape", "back", "Back to the main screen.", SUB_SCREENS),
    # --- every screen, named in the help only -----------------------------------------------------
    Action("palette", "ctrl+p", "", "Command palette: every action by its name."),
    Action(
        "redraw",
        "ctrl+l",
        "",
        (
            "Draw again: the charts of the history screen, or after another program wrote to the"
            " terminal."
        ),
    ),
)
"""In the order of the key bar: what does not fit is left out, and is in the help."""


def for_answer(view: View) -> list[tuple[str, str]]:
    """(key, label) of what the answer line offers now, the most useful first."""
    by_id = {action.id: action for action in ACTIONS}
    labels = [
        ("cancel_trial", "cancel"),
        ("try_selected", "try"),
        ("details", "details"),
        ("output", "output"),
        ("scenarios", "scenarios"),
        ("knobs", "settings"),
    ]
    run = view.run
    failed = run is not None and run.state == "failed"
    useful = {"cancel_trial", "try_selected"}
    if run is None:
        useful |= {"scenarios"}
    elif failed:
        useful |= {"output"} if run.is_job else {"scenarios", "knobs"}
    else:
        useful |= {"details"} if run.findings else set()
    offers = [
        (_named(by_id[name].keys), label)
        for name, label in labels
        if name in useful and by_id[name].makes_sense(view)
    ]
    several = not failed and len(facts.suggestions(view)) > 1 and facts.running_trial(view) is None
    another = "next option" if facts.healthy(run) is not None else "next finding"
    return (
        [*offers, (_named(by_id["choose_next"].keys), another)]
        if several and _running(view)
        else offers
    )


def _named(written: str) -> str:
    """The first of the keys, as it is printed on a keyboard."""
    key = written.partition(",")[0]
    return {"enter": "Enter", "escape": "Esc", "down": "↓"}.get(key, _WRITTEN.get(key, key))


def on(screen: str) -> list[Action]:
    """The actions that belong to `screen`."""
    return [action for action in ACTIONS if screen in action.screens]


def of_replay() -> list[Action]:
    """The actions of a recording that plays."""
    return [action for action in ACTIONS if action.makes_sense is _plays]


def everywhere() -> list[Action]:
    """The actions of every screen."""
    return [action for action in ACTIONS if not action.screens]


def written() -> dict[str, str]:
    """What a reader presses, by action."""
    return {action.id: action.bar or action.written for action in ACTIONS}


def screen_bindings(screen: str) -> list[BindingType]:
    """Bindings to the methods `action_<id>` of a screen, or to actions of the app."""
    from textual.binding import Binding  # the first figures do not wait for this import

    return [
        Binding(key, _with_digit(action, key), action.help, show=False)
        for action in on(screen)
        for key in action.keys.split(",")
    ]


def _with_digit(action: Action, key: str) -> str:
    """The command of `action`, with the digit where there is one."""
    if action.keys != DIGITS:
        return action.command
    return f"app.do('{action.id}', '{key}')" if action.of_app else f"{action.id}('{key}')"


def app_bindings() -> list[BindingType]:
    """Bindings of the actions that work everywhere. Keys with ctrl come before those of a focused
    field."""
    from textual.binding import Binding

    return [
        Binding(
            key, f"do('{action.id}')", action.help, show=False, priority=key.startswith("ctrl+")
        )
        for action in everywhere()
        for key in action.keys.split(",")
    ]


def bar(screen: str, view: View) -> tuple[list[Action], list[Action]]:
    """The actions in the key bar, at its left and at its right: few, by the state. On a sub-screen:
    the way back and the screen's own actions. In a text field: its own keys only."""
    if screen in FIELDS:
        return on(screen), []
    by_id = {action.id: action for action in [*on(screen), *everywhere()]}
    if screen in ("main", MACHINE):
        left, right = (
            [by_id[name] for name in _wanted(view) if name in by_id],
            [by_id["help"], by_id["quit"]],
        )
    else:
        own = [action for action in on(screen) if action.id != "back"]
        if screen == "tuning" and tuning(view):
            own.insert(0, by_id["stop"])
        if screen == "knobs":
            own.insert(1, by_id["revert"])
        left, right = [by_id["back"], *own], [by_id["help"]]
    return [action for action in left if action.label and action.makes_sense(view)], right


def _wanted(view: View) -> tuple[str, ...]:
    """What a user may want to press on the main screen, the most useful first."""
    if _plays(view):
        return (
            "pause",
            "forward",
            "jump",
            "faster",
            "details",
            "history",
            "knobs",
            "device",
            "export",
        )
    if view.run is None:
        return (
            ("scenarios", "open_processes", "jobs", "device", "sort_next", "find", "topology")
            if _has_gpu(view)
            else ("scenarios", "device")
        )
    if trial_runs(view):
        return "cancel_trial", "details", "history", "output"
    if tuning(view):
        return "stop", "tuning", "details", "history"
    if _running(view):
        return (
            "try_selected",
            "probes",
            "tuning",
            "details",
            "output",
            "knobs",
            "history",
            "stop",
            "scenarios",
        )
    if _is_job(view):
        return "output", "details", "history", "export", "scenarios"
    return "scenarios", "details", "history", "knobs", "export"


def use(changed: Mapping[str, str]) -> None:
    """Take the user's keys: action id to key. Raises ValueError with what is allowed.

    Screens read the table when they are imported, so this comes before them.
    """
    global ACTIONS
    action_ids = {action.id for action in ACTIONS}
    for name, key in changed.items():
        if name in FIXED:
            raise ValueError(f"{name}: this key cannot be changed")
        if name not in action_ids:
            raise ValueError(
                f"there is no action {name!r}{nearest(name, action_ids)}; there are:"
                f" {', '.join(sorted(action_ids))}"
            )
        if _textual_name(key) is None:
            raise ValueError(
                f"{name}: there is no key {key!r}; allowed are a character, and names such as f5,"
                " ctrl+t, enter, space or pageup"
            )
    new = tuple(
        action._replace(keys=_textual_name(changed[action.id]) or "", bar="")
        if action.id in changed
        else action
        for action in ACTIONS
    )
    for screen in ("main", *SUB_SCREENS):
        taken: dict[str, str] = {}
        for action in new:
            if action.screens and screen not in action.screens:
                continue
            for key in action.keys.split(","):
                if (other := taken.setdefault(key, action.id)) != action.id and {
                    other,
                    action.id,
                } & set(changed):
                    name = action.id if action.id in changed else other
                    raise ValueError(
                        f"{name}: the key {_WRITTEN.get(key, key)!r} is taken by"
                        f" {other if name == action.id else action.id}"
                    )
    ACTIONS = new


def _textual_name(key: str) -> str | None:
    """Textual's name of a key that a user wrote; None: there is no such key."""
    from textual.keys import Keys, _character_to_key

    if len(key) == 1 and key.isprintable():
        return _character_to_key(key)
    names = {
        name.value for name in Keys if name.name not in ("Any", "Ignore", "ScrollUp", "ScrollDown")
    }
    key = {"esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown"}.get(
        key.lower(), key.lower()
    )
    return key if key in names else None
