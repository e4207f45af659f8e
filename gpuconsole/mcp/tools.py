"""The tools of an agent: a call of a tool makes one request to a SessionApi and returns one small
answer. No other code decides what an agent may do."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuconsole.diagnosis.engine import DiagnosisStatus
from gpuconsole.mcp import answers, readings
from gpuconsole.mcp.answers import FromJob, Permissions, from_job
from gpuconsole.model.experiments import Trial
from gpuconsole.model.job import LOADER, NUMERICS
from gpuconsole.model.knobs.catalogue import KnobError, Knobs, describe_changes
from gpuconsole.model.profile import MAX_STEPS, STEPS
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.model.text import without_credentials
from gpuconsole.report.patch import Patch
from gpuconsole.report.session import session_text
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, SessionError, View

MAX_WAIT_S = 120.0
TICK_S = 0.25
PROGRESS_S = 0.5
SETTLE_S = 2.0
"""Seconds for a cancelled trial to take its change back."""
SHORT = (3000, 2000, 1200, 700)
"""Characters of a report or a patch that is not asked for as a whole: the first that fits."""
TEXT_BYTES = 3200
WHOLE = 200_000
PROBES = "probes"
FLAGS = {PROBES: "--probe", NUMERICS: "--allow-numerics", LOADER: "--allow-loader"}

Progress = Callable[[float, float | None, str], Awaitable[None]]
"""Takes the seconds so far, the limit in seconds, and a line."""


class ToolError(Exception):
    """A tool refuses. The message is one line that names what is allowed."""


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class WaitFor(msgspec.Struct, forbid_unknown_fields=True):
    wait_s: float = 0.0


class OfFinding(msgspec.Struct, forbid_unknown_fields=True):
    finding: str
    all: bool = False


class OfSetting(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    all: bool = False


class Changes(msgspec.Struct, forbid_unknown_fields=True):
    changes: dict[str, bool | int | float | str]
    keep: bool = False


class Permission(msgspec.Struct, forbid_unknown_fields=True):
    what: str


class StepsArguments(msgspec.Struct, forbid_unknown_fields=True):
    steps: int = STEPS


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    all: bool = False


class Tool(NamedTuple):
    """`name` is the name of the method of Tools. `changes`: whether the tool changes the run."""

    name: str
    description: str
    takes: type[msgspec.Struct]
    gives: type[msgspec.Struct]
    changes: bool = False


TOOLS = (
    Tool(
        "status",
        (
            "What limits the run, where the time of a step goes, throughput, findings with evidence"
            " and with the signals that each still needs. wait_s: wait up to so many seconds (at"
            f" most {MAX_WAIT_S:g}) until the diagnosis is complete."
        ),
        WaitFor,
        answers.Status,
    ),
    Tool(
        "explain",
        (
            "A finding in full: evidence, suggestions, code, the text of its rule. finding: the"
            " rule id."
        ),
        OfFinding,
        answers.Conclusion,
    ),
    Tool(
        "settings",
        (
            "Which settings can change, whether live, with what effect on the numbers, and the"
            " allowed values. name: one setting."
        ),
        OfSetting,
        answers.SettingsAnswer,
    ),
    Tool(
        "try_change",
        (
            'Measure a change in paired blocks on the running program, for example {"num_workers":'
            " 4}:"
            " verdict, interval, predicted against measured. The change is then taken back, and"
            " `keep` keeps a win. keep=true keeps a win at once: pass it for a change that needs a"
            " restart."
        ),
        Changes,
        answers.TrialAnswer,
        True,
    ),
    Tool(
        "keep",
        "Keep the change of the last trial. Only a proven win can be kept.",
        Nothing,
        answers.Kept,
        True,
    ),
    Tool("revert", "Undo the last change that was kept.", Nothing, answers.Kept, True),
    Tool(
        "allow",
        (
            "Use a permission that the person has granted on the command line. what: probes (extra"
            " passes on copies of a batch), numerics (changes that alter the numbers of the job) or"
            " loader (new workers, which load ahead, from copies of the dataset)."
        ),
        Permission,
        answers.Done,
        True,
    ),
    Tool(
        "profile",
        (
            f"Profile some steps of the run (1 to {MAX_STEPS}, default {STEPS}): time by kind of"
            " kernel, the longest ones, a trace file. In a job of the person's own it needs the"
            " permission for probes. Of several processes it profiles the first one, and the others"
            " wait for it once."
        ),
        StepsArguments,
        answers.ProfileAnswer,
        True,
    ),
    Tool(
        "patch",
        "The kept changes as a diff of the program, for `git apply`. Writes no file.",
        Whole,
        answers.Text,
    ),
    Tool("report", "The report of the session so far, as text.", Whole, answers.Text),
    Tool(
        "devices",
        "The GPUs, or the CPU, with their present readings.",
        Whole,
        answers.DevicesAnswer,
    ),
    Tool(
        "stop",
        "End the program: SIGINT; a further call SIGTERM, then SIGKILL. A scenario ends at once.",
        Nothing,
        answers.Done,
        True,
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


class Tools:
    """The tools on one session. Calls come on the event loop of the session."""

    def __init__(
        self,
        api: SessionApi,
        patch_of: Callable[[Snapshot], tuple[Patch, list[str]]],
        may: frozenset[str] = frozenset(),
        output: Path | None = None,
    ) -> None:
        """`patch_of`: the patch for the kept changes of a snapshot. `may`: what the person has
        granted, PROBES or NUMERICS. `output`: the file with the output of the job."""
        self._api, self._patch_of, self._may, self._output = api, patch_of, may, output

    async def call(self, tool_name: str, arguments: object, progress: Progress) -> msgspec.Struct:
        """The answer of a tool. Raises ToolError."""
        tool = BY_NAME.get(tool_name)
        if tool is None:
            raise ToolError(
                f"there is no tool {answers.name(tool_name, 60)!r}; there are: {', '.join(BY_NAME)}"
            )
        try:
            given = msgspec.convert(arguments, tool.takes)
            result: msgspec.Struct = await getattr(self, tool.name)(given, progress)
        except msgspec.ValidationError as error:
            fields = ", ".join(tool.takes.__struct_fields__) or "none"
            raise ToolError(
                f"{tool.name}: {answers.name(str(error))}; arguments: {fields}"
            ) from None
        except (SessionError, KnobError) as error:
            raise ToolError(answers.name(str(error), 600)) from None
        return result

    # --- reading ----------------------------------------------------------------------------------

    async def status(self, given: WaitFor, progress: Progress) -> answers.Status:
        if not 0 <= given.wait_s <= MAX_WAIT_S:
            raise ToolError(f"wait_s: allowed are 0 to {MAX_WAIT_S:g}")
        begun, said = time.monotonic(), 0.0
        standing = DiagnosisStatus(begun)
        while (waited := time.monotonic() - begun) < given.wait_s:
            view = self._api.view()
            if not facts.active(view) or (
                view.run is not None
                and standing.evaluate(view.run, bool(view.probing), time.monotonic())
            ):
                break
            if waited - said >= PROGRESS_S and view.run is not None:
                said = waited
                await progress(waited, given.wait_s, readings.diagnosis(view, view.run))
            await asyncio.sleep(TICK_S)
        return readings.status(self._api.view(), self._permissions(), self._last_output())

    async def explain(self, given: OfFinding, progress: Progress) -> answers.Conclusion:
        run = self._run()
        answer = readings.explain(given.finding, run, given.all)
        if answer is None:
            firing = ", ".join(finding.rule for finding in facts.firing(run)) or "none fires"
            raise ToolError(
                f"explain: no finding {answers.name(given.finding, 60)!r}; there are: {firing}"
            )
        return answer

    async def settings(self, given: OfSetting, progress: Progress) -> answers.SettingsAnswer:
        run = self._run()
        if not run.settings:
            raise ToolError("settings: they are known after the first steps")
        if given.name and given.name not in run.settings:
            raise ToolError(
                f"settings: no setting {answers.name(given.name, 60)!r}; there are:"
                f" {', '.join(sorted(run.settings))}"
            )
        return readings.settings(run, given.name, given.all)

    async def patch(self, given: Whole, progress: Progress) -> answers.Text:
        patch, lines = self._patch_of(self._api.snapshot())
        if not patch.parts and not patch.lines:
            raise ToolError(lines[0] if lines else "patch: no change was kept")
        how = _how_to_apply(patch)
        text = _part(patch.diff, given.all)
        if text.cut_characters:
            how = "the patch is cut: ask for all"
        elif text.from_job != patch.diff:
            how = "the program holds characters that are shown as escapes: write the change by hand"
        return answers.Text(text, how, [from_job(line, 160) for line in patch.lines[:5]])

    async def report(self, given: Whole, progress: Progress) -> answers.Text:
        return answers.Text(_part(session_text(self._api.snapshot()), given.all))

    async def devices(self, given: Whole, progress: Progress) -> answers.DevicesAnswer:
        return readings.devices(self._api.view(), given.all)

    # --- acting -----------------------------------------------------------------------------------

    async def try_change(self, given: Changes, progress: Progress) -> answers.TrialAnswer:
        if not given.changes:
            raise ToolError(
                'try_change: name a setting and its new value, such as {"changes": {"num_workers":'
                " 4}}"
            )
        run = self._run()
        if why := run.why_not(given.changes):
            raise ToolError(answers.name(why))
        changes: Knobs = run.effective(given.changes)
        self._check_permissions(run, changes)
        begun = time.monotonic()
        trial = asyncio.create_task(
            self._api.try_change(
                changes, readings.prediction_of(self._api.view(), changes), keep=given.keep
            )
        )
        try:
            while not trial.done():
                await asyncio.wait([trial], timeout=PROGRESS_S)
                running = facts.running_trial(self._api.view())
                if running is not None and not trial.done():
                    speedup = (
                        (
                            f", {running.speedup.estimate:.2f}x [{running.speedup.low:.2f},"
                            f" {running.speedup.high:.2f}]"
                        )
                        if running.speedup
                        else ""
                    )
                    await progress(
                        time.monotonic() - begun,
                        None,
                        f"trial of {describe_changes(changes)}: {running.blocks} blocks{speedup}",
                    )
        except asyncio.CancelledError:
            # the client has cancelled or vanished, or the person has taken the control
            await self._take_back(trial, changes)
            raise
        done = trial.result()
        return readings.trial_answer(
            done, "keep: it is a proven win" if done.worth_keeping and not done.kept else ""
        )

    async def _take_back(self, trial: asyncio.Task[Trial], changes: Knobs) -> None:
        """End the trial of these changes as cancelled. Where it waits for a probe, or the program
        does not answer, nothing is waited for."""
        running = facts.running_trial(self._api.view())
        if running is not None and running.changes == changes and not trial.done():
            self._api.cancel_trial()
            await asyncio.wait([trial], timeout=SETTLE_S)
        trial.cancel()
        await asyncio.wait([trial])

    async def keep(self, given: Nothing, progress: Progress) -> answers.Kept:
        trial = await self._api.keep_trial()
        return self._kept(f"kept {describe_changes(trial.changes)}")

    async def revert(self, given: Nothing, progress: Progress) -> answers.Kept:
        await self._api.revert()
        return self._kept("reverted the last kept change")

    async def allow(self, given: Permission, progress: Progress) -> answers.Done:
        if given.what not in FLAGS:
            raise ToolError(
                f"allow: {answers.name(given.what, 60)!r} is no permission; there are:"
                f" {', '.join(FLAGS)}"
            )
        job = self._api.job
        if job is None:
            raise ToolError(
                "allow: only a job of the person's own needs permissions; a scenario needs none"
            )
        if given.what not in self._may and not getattr(job, f"allows_{given.what}"):
            raise ToolError(
                f"allow: the person has not granted {given.what} ({FLAGS[given.what]} on the"
                " command line, or a key on the screen)"
            )
        {PROBES: job.allow_probes, NUMERICS: job.allow_numerics, LOADER: job.allow_loader}[
            given.what
        ]()
        return answers.Done(f"{given.what} allowed")

    async def profile(self, given: StepsArguments, progress: Progress) -> answers.ProfileAnswer:
        if not 1 <= given.steps <= MAX_STEPS:
            raise ToolError(f"profile: steps: allowed are 1 to {MAX_STEPS}")
        report = await self._api.profile(given.steps)
        return readings.profile_answer(report, self._api.view())

    async def stop(self, given: Nothing, progress: Progress) -> answers.Done:
        job = self._api.job
        if job is None:
            await self._api.stop()
            return answers.Done("the run has ended")
        if job.ended:
            raise ToolError("stop: the job has ended already")
        return answers.Done(answers.name(job.interrupt().partition(";")[0]))

    # --- what several tools use -------------------------------------------------------------------

    def _run(self) -> Run:
        run = self._api.view().run
        if run is None:
            raise ToolError("nothing is running")
        return run

    def _check_permissions(self, run: Run, changes: Knobs) -> None:
        job = self._api.job
        needed = run.permissions(changes) if job is not None else []
        if missing := [what for what in needed if not getattr(job, f"allows_{what}")]:
            raise ToolError(
                f"{describe_changes(changes)}: {run.effect(changes)}. It needs the permission for"
                f" {' and '.join(missing)} (allow)"
            )

    def _permissions(self) -> Permissions | None:
        job = self._api.job
        if job is None:
            return None
        in_force = {
            PROBES: job.allows_probes,
            NUMERICS: job.allows_numerics,
            LOADER: job.allows_loader,
        }
        states = {
            what: readings.ALLOWED if on else readings.ASK if what in self._may else readings.NO
            for what, on in in_force.items()
        }
        return Permissions(states[PROBES], states[NUMERICS], states[LOADER])

    def _last_output(self) -> tuple[str, str] | None:
        """The file with the output of the job, and its last lines."""
        job = self._api.job
        if job is None:
            return None
        lines = [line.rstrip() for line in job.lines.text()[-8:] if line.strip()]
        return str(self._output or ""), without_credentials("\n".join(lines))

    def _kept(self, done: str) -> answers.Kept:
        view: View = self._api.view()
        gain = facts.since_start(view)
        return answers.Kept(
            done, facts.kept_changes(facts.chain(view)), gain.words if gain is not None else ""
        )


def _how_to_apply(patch: Patch) -> str:
    """Where `git apply` accepts the patch."""
    if not patch.parts:
        return "write these lines by hand"
    if patch.parts[1:]:
        return (
            "each part is a patch of its own: git apply, from the folder that the line before the"
            " part names"
        )
    folder = patch.parts[0].folder
    return (
        f"git -C {answers.name(shlex.quote(folder), 200)} apply"
        if folder
        else "git apply, from the folder in which the program was started"
    )


def _part(text: str, whole: bool) -> FromJob:
    """The begin of a text of several lines, or all of it."""
    if whole:
        return from_job(text, WHOLE)
    return answers.fitting(
        lambda most: from_job(text, most), [(most,) for most in SHORT], TEXT_BYTES
    )
