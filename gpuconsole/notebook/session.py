"""`gpuconsole.watch()`: a block in which this process is watched, and what its session says."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from gpuconsole.host.files import write_whole
from gpuconsole.mcp.answers import Kept, Status, Text, TrialAnswer
from gpuconsole.mcp.messages import LEAVE, SNAPSHOT, Leave, Left
from gpuconsole.model.finding import Finding
from gpuconsole.model.knobs.knob import Value, show
from gpuconsole.model.snapshot import Snapshot, encode
from gpuconsole.notebook import here
from gpuconsole.notebook.console import Console, ConsoleLost, WatchError

if TYPE_CHECKING:
    from gpuconsole.notebook.page import SessionPage


import contextvars
import threading
from collections.abc import Callable
from typing import Any

LEAVE_S = 15.0
OTHER_THREAD_S = 3.0
"""Seconds until another thread that trains has made a step, between whose end and the next one the
agent leaves."""
TRIAL_S = 3600.0
"""The console limits a trial itself."""
UNWATCHED = "not watched"
RUN_WATCHES = "gpuconsole run watches this process already: watch() does nothing in it"
NESTED = (
    "this process is watched already: leave the block of the first watch() before the next one"
    " begins"
)

_watching: list[Session] = []
"""The session whose block is under way in this process, if there is one."""


def watch(
    *,
    apply_top: bool = False,
    tries: Mapping[str, Value] | None = None,
    probe: bool = False,
    allow_numerics: bool = False,
    allow_loader: bool = False,
    memory: bool = False,
    log_to: Iterable[str] = (),
    record: str | os.PathLike[str] | None = None,
    device: str | None = None,
    interval: float | None = None,
    name: str | None = None,
    live: bool | None = None,
    quiet: bool = False,
) -> Session:
    """Watch the training in a `with` block: `with gpuconsole.watch() as session: ...`.

    `apply_top`: try the top suggestion as soon as the diagnosis is complete, and keep it in the
    block if it is faster. `tries`: try this change instead, such as `{"num_workers": 4}`. Without
    these two, nothing is changed. `probe`, `allow_numerics`, `allow_loader`, `memory`, `log_to`,
    `record`, `device`, `interval`: as the options of `gpuconsole run`. `name`: what the run is
    called. `live`: show a table that is updated; None: in a notebook. `quiet`: neither a table nor
    a report at the end.
    """
    options = [f"--name={name or _name()}"]  # with =, a value that begins with a dash is no option
    for flag, given in (
        ("probe", probe),
        ("allow-numerics", allow_numerics),
        ("allow-loader", allow_loader),
        ("memory", memory),
        ("apply-top", apply_top),
    ):
        options += [f"--{flag}"] if given else []
    for knob, value in (tries or {}).items():
        options.append(f"--try={knob}={show(value)}")
    for tracker in log_to:
        options.append(f"--log-to={tracker}")
    for option, text in (("record", record), ("device", device), ("interval", interval)):
        options += (
            [f"--{option}={os.fspath(text) if isinstance(text, os.PathLike) else text}"]
            if text is not None
            else []
        )
    return Session(options, LiveTable.wanted(live) and not quiet, quiet)


def _name() -> str:
    """The notebook or the script of this process."""
    notebook = os.environ.get("JPY_SESSION_NAME", "")  # set by Jupyter servers since 2.0
    return (
        os.path.basename(
            notebook or (sys.argv[0] if sys.argv and "ipykernel" not in sys.modules else "")
        )
        or "notebook"
    )


class Session:
    """What is known of the training in the block of `watch()`. It stays readable after the
    block."""

    def __init__(self, options: list[str], live: bool, quiet: bool) -> None:
        self._options, self._quiet = options, quiet
        self._live = LiveTable(self.shown) if live else None
        self._console: Console | None = None
        self._agent: here.BlockAgent | None = None
        self._snapshot: Snapshot | None = None
        self._status: Status | None = None
        self._patch, self._has_left = "", False
        self.lines: tuple[str, ...] = ()
        """What to read beside the report, once the block is over: problems, the patch, what could
        be tried."""
        self.problem = ""
        """Why the training is not watched, in one line; empty where it is, or was until the end of
        the block."""

    # --- the block --------------------------------------------------------------------------------

    def __enter__(self) -> Session:
        if _watching:
            raise WatchError(NESTED)
        if here.is_watched():
            self._continue_without(RUN_WATCHES)
            return self
        if self._console is not None:
            raise WatchError("the block of this session is over: call watch() again")
        _watching.append(self)
        try:
            self._console = Console(self._options)
            self._begin(self._console)
        except (ConsoleLost, OSError) as problem:
            self._continue_without(str(problem))
        except BaseException as problem:  # bad usage, or an interrupt
            self._end(problem)
            raise
        return self

    def _begin(self, console: Console) -> None:
        try:
            self._agent = here.BlockAgent(console.joined)
        except Exception as failure:  # for example a version of torch that the hooks do not know
            self._continue_without(f"the agent cannot start: {failure!r}")
        if self._live is not None:
            self._live.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self in _watching:
            self._end(problem)
            self._show_end()

    def _continue_without(self, problem: str) -> None:
        """The training comes first, whatever is wrong with its console."""
        self.problem = self.problem or problem
        if not self._quiet:
            print(f"gpuconsole: the training is not watched: {problem}", file=sys.stderr)

    def _end(self, problem: BaseException | None) -> None:
        """The block is over: the agent leaves, and the console ends. An interrupt ends this early,
        and leaves no hook."""
        agent, self._agent = self._agent, None
        try:
            if self._live is not None:
                self._live.stop()
            if agent is not None and agent.trains_elsewhere:
                self._take_leave(problem)
                until = time.monotonic() + OTHER_THREAD_S
                while not agent.is_off and time.monotonic() < until:
                    time.sleep(0.01)
        finally:
            try:
                if agent is not None:
                    self._leave(agent, problem)
                self._take_leave(problem)
            finally:
                _watching.clear()
                if self._console is not None:
                    self._console.close()

    def _leave(self, agent: here.BlockAgent, problem: BaseException | None) -> None:
        try:
            agent.leave(problem)
        except Exception as failure:
            self._continue_without(f"the agent could not leave: {failure!r}")

    def _take_leave(self, problem: BaseException | None) -> None:
        """End the run, and keep its last state. A second call changes nothing."""
        if self._console is None or self._has_left:
            return
        self._has_left = True
        error = (
            f"{type(problem).__name__}: {problem}".splitlines()[0]
            if isinstance(problem, Exception)
            else None
        )
        leave = Leave("finished" if problem is None else "failed" if error else "stopped", error)
        try:
            left = msgspec.convert(self._console.call(LEAVE, leave, LEAVE_S), Left)
        except WatchError as lost:
            self._continue_without(str(lost))
            return
        self._snapshot, self._status, self._patch, self.lines = (
            left.snapshot,
            left.status,
            left.patch,
            tuple(left.lines),
        )

    def _show_end(self) -> None:
        if self._live is not None:
            self._live.show()
        elif not self._quiet and self._snapshot is not None:
            print("\n".join([self.report(), *self.lines]), file=sys.stderr)

    # --- what is known ----------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """The state now, or at the end of the block: what limits the training, step breakdown,
        throughput, findings in short, the trial under way."""
        if self._running:
            with contextlib.suppress(WatchError):
                self._status = msgspec.convert(self._call("status"), Status)
        if self._status is None or self.problem:
            last = self._status or Status("", UNWATCHED, "", "", False, "")
            return msgspec.structs.replace(
                last, state=UNWATCHED, answer=self.problem or "the block has not begun"
            )
        return self._status

    @property
    def snapshot(self) -> Snapshot | None:
        """The whole session, as in a snapshot file; None where nothing is known."""
        if self._running:
            with contextlib.suppress(WatchError):
                self._snapshot = msgspec.convert(self._call(SNAPSHOT), Snapshot)
        return self._snapshot

    @property
    def findings(self) -> list[Finding]:
        """The findings that fire in the newest run, the largest gain first."""
        snapshot = self.snapshot
        runs = snapshot.runs if snapshot is not None else []
        return [
            finding
            for finding in (runs[-1].findings if runs else ())
            if finding.state == "fires" and not finding.note
        ]

    def report(self) -> str:
        """The report of the session as text: that of `gpuconsole run --headless`."""
        from gpuconsole.report.session import session_text

        snapshot = self.snapshot
        text = session_text(snapshot) if snapshot is not None else ""
        return "\n".join(
            filter(None, (text, f"gpuconsole: {self.problem}" if self.problem else ""))
        )

    def patch(self) -> str:
        """Return the kept changes as a diff for `git apply`; empty without kept changes, and where
        no file holds the code, as in a notebook: see `lines`. If the files are in several folders,
        a line before each part names the folder of the part."""
        if self._running:
            with contextlib.suppress(WatchError):
                return msgspec.convert(self._call("patch", {"all": True}), Text).text.from_job
        return self._patch

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the session: `.json` is a snapshot for `gpuconsole report`, `compare` and
        `diagnose`; `.html` and `.md` are reports. Raises ValueError for another suffix, OSError,
        and WatchError where nothing is known."""
        from gpuconsole.report.share.html import html_page
        from gpuconsole.report.share.markdown import markdown_page
        from gpuconsole.report.share.session import session_document

        pages = {".html": html_page, ".md": markdown_page}
        suffix = Path(path).suffix
        if suffix not in (".json", *pages):
            raise ValueError(f"{path}: the name must end in .json, .html or .md")
        snapshot = self.snapshot
        if snapshot is None:
            raise WatchError(self.problem or "the block has not begun: nothing is known")
        write_whole(
            Path(path),
            encode(snapshot)
            if suffix == ".json"
            else pages[suffix](session_document(snapshot)).encode(),
        )

    def shown(self) -> SessionPage:
        """The present state, for the output of a cell."""
        from gpuconsole.notebook.page import SessionPage  # what a script does not need

        return SessionPage(self.status, self.lines)

    def __repr__(self) -> str:
        return repr(self.shown())

    def _repr_html_(self) -> str:
        return self.shown()._repr_html_()

    # --- changes ----------------------------------------------------------------------------------

    def try_change(self, keep: bool = True, **changes: Value) -> TrialAnswer:
        """Try a change in paired blocks, such as `try_change(num_workers=4)`, and keep it until the
        end of the block if it is faster. Returns when the trial is over: call it while the training
        runs in another thread. Raises WatchError."""
        if self._agent is not None and self._agent.trains_here:
            raise WatchError(
                "this thread trains, and a trial needs its steps: train in another thread, or use"
                " watch(tries={...})"
            )
        if not changes:
            raise WatchError("name a setting and its new value, such as try_change(num_workers=4)")
        return msgspec.convert(
            self._call("try_change", {"changes": changes, "keep": keep}, TRIAL_S), TrialAnswer
        )

    def revert(self) -> Kept:
        """Take the last kept change back. Raises WatchError."""
        return msgspec.convert(self._call("revert"), Kept)

    @property
    def _running(self) -> bool:
        return self in _watching and not self.problem

    def _call(self, tool: str, arguments: object = None, limit_s: float = 10.0) -> object:
        """Raises WatchError, also where the console is lost: `problem` says so from then on."""
        if not self._running or self._console is None:
            raise WatchError(self.problem or "the block is over, or has not begun")
        try:
            return self._console.call(tool, arguments, limit_s)
        except ConsoleLost as lost:
            self.problem = self.problem or f"{lost}; the training goes on without it"
            raise


def _forked() -> None:
    """Called in a forked child: the session belongs to the parent process."""
    for session in _watching:
        if session._console is not None:
            session._console.close()
        session.problem = "this process was forked from the one that is watched"
    _watching.clear()


os.register_at_fork(after_in_child=_forked)


# --- the table that a notebook shows while the training runs --------------------------------------
# A thread updates it about once a second.

EVERY_S = 1.0
STOP_S = 2.0


class LiveTable:
    """One output of a cell, which is replaced."""

    def __init__(self, shown: Callable[[], object]) -> None:
        """`shown`: what the output is now."""
        self._shown = shown
        self._handle: Any = None
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def wanted(asked: bool | None) -> bool:
        """Whether there is a notebook to show it in, unless the caller has decided."""
        if asked is not None:
            return asked
        ipython = sys.modules.get("IPython")
        return hasattr(ipython.get_ipython() if ipython is not None else None, "kernel")

    def begin(self) -> None:
        from IPython.display import display

        self._handle = display(self._shown(), display_id=True)  # type: ignore[no-untyped-call]
        # what a thread shows belongs to a cell by the context of the thread
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._update,),
            name="gpuconsole-table",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def show(self) -> None:
        """Show the state as it is now."""
        if self._handle is not None:
            self._handle.update(self._shown())

    def _update(self) -> None:
        while not self._ends.wait(EVERY_S):
            self.show()
