"""Runs checks one after another, each in a process with a time limit, and keeps what became of them
in one file."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.check import FAILED, NOT_RUN, PASSED, Check, Result

SCHEMA = "gpuconsole.gpu_day/1"
MAX_ATTEMPTS = 2
"""A check during which the runner itself has ended so many times takes the machine down: it is not
started again."""
INTERRUPTED = "interrupted"
NO_TIME = "no time"


class StateError(ValueError):
    """The file is not the state of such a run; the message is one line."""


class State:
    """The results so far, in a file that is replaced as a whole after each check."""

    def __init__(self, path: Path, machine: Mapping[str, Any], simulated: bool) -> None:
        """Continues with the file if it exists. Raises StateError."""
        self.path, self.simulated = path, simulated
        self.machine = dict(machine)
        self.results: dict[str, Result] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            found = json.loads(self.path.read_text())
            if found["schema"] != SCHEMA:
                raise StateError(f"{self.path}: schema {found['schema']}, expected {SCHEMA}")
            if found["simulated"] != self.simulated:
                kind = "a simulated device" if found["simulated"] else "a real device"
                raise StateError(
                    f"{self.path} is from {kind}: choose another --folder, or delete it"
                )
            if (before := found["machine"].get("gpus")) != (now := self.machine.get("gpus")):
                raise StateError(
                    f"{self.path} is from other GPUs ({before}, now {now}): choose another"
                    " --folder, or delete it"
                )
            self.results = {name: Result.read(one) for name, one in found["checks"].items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise (
                error if isinstance(error, StateError) else StateError(f"{self.path}: {error}")
            ) from None

    def keep(self, name: str, result: Result) -> None:
        """Remember the result and write the file. The file is whole at any moment."""
        self.results[name] = result
        self.write()

    def write(self) -> None:
        whole = {
            "schema": SCHEMA,
            "simulated": self.simulated,
            "machine": self.machine,
            "checks": {name: one.plain() for name, one in self.results.items()},
        }
        partial = self.path.with_suffix(".partial")
        with partial.open("w") as file:
            file.write(json.dumps(whole, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self.path)


class Runner:
    """`package`: where the checks are. `environment`: of their processes. `say`: one line for the
    user."""

    def __init__(
        self,
        package: str,
        state: State,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        commit: str = "",
    ) -> None:
        self._package, self._state, self._environment, self._say, self._commit = (
            package,
            state,
            dict(environment),
            say,
            commit,
        )
        self._folder = state.path.parent

    def run(self, checks: Sequence[Check], deadline: float) -> None:
        """Run what has no result yet, until `deadline` (time.monotonic()). KeyboardInterrupt ends
        it; the check under way has no result then."""
        for number, one in enumerate(checks, 1):
            before = self._state.results.get(one.name)
            if before is not None and before.state in (PASSED, FAILED):
                continue
            attempts = before.attempts if before is not None else 0
            left = deadline - time.monotonic()
            if one.by_hand:
                self._state.keep(one.name, Result(NOT_RUN, f"by hand: {one.by_hand}"))
            elif attempts >= MAX_ATTEMPTS:
                reason = (
                    f"the run ended {attempts} times during this check; --again {one.name} starts"
                    " it again"
                )
                self._state.keep(one.name, self._stamped(Result(FAILED, reason), attempts))
            elif left < one.seconds:
                reason = f"{NO_TIME}: it needs about {one.seconds:.0f} s"
                self._state.keep(one.name, Result(NOT_RUN, reason, attempts=attempts))
            else:
                self._say(
                    f"{number}/{len(checks)}  {one.name}: {one.title} (about {one.seconds:.0f} s)"
                )
                self._state.keep(one.name, Result(NOT_RUN, INTERRUPTED, attempts=attempts + 1))
                self._one(one, left, attempts)

    def _one(self, one: Check, left: float, attempts: int) -> None:
        begun = time.monotonic()
        try:
            result = self._result_of(one, min(one.limit_s, left), left < one.limit_s)
        except KeyboardInterrupt:  # wanted by the user, so it does not speak against the check
            self._state.keep(one.name, Result(NOT_RUN, INTERRUPTED, attempts=attempts))
            raise
        result.seconds = round(time.monotonic() - begun, 1)
        # what could not be answered has taken nothing down
        self._state.keep(
            one.name, self._stamped(result, 0 if result.state == NOT_RUN else attempts + 1)
        )
        wrong = [f"{figure.name} {figure.value}" for figure in result.figures if not figure.holds]
        self._say(
            f"    {result.state}"
            + "".join(f"; {words}" for words in (result.reason, *wrong) if words)
        )

    def _stamped(self, result: Result, attempts: int) -> Result:
        result.at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        result.commit, result.attempts = self._commit, attempts
        return result

    def _result_of(self, one: Check, limit_s: float, is_rest: bool) -> Result:
        """Run the check in a child. `is_rest`: the limit is the rest of the time, not the check's
        own."""
        plain = re.sub(r"[^\w.-]", "_", one.name)
        answer, log = self._folder / f"{plain}.json", self._folder / f"{plain}.log"
        answer.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu_day.child",
            self._package,
            one.name,
            str(answer),
            str(self._folder),
        ]
        command += ["--simulated"] if self._state.simulated else []
        with log.open("wb") as words:
            child = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                child.wait(limit_s)
            except subprocess.TimeoutExpired:
                if is_rest:
                    return Result(
                        NOT_RUN,
                        f"{NO_TIME}: it was not ready within the {limit_s:.0f} s that were left",
                    )
                return Result(FAILED, f"it hangs: no result after {limit_s:.0f} s{_last_line(log)}")
            finally:
                _end(child)
        try:
            return Result.read(json.loads(answer.read_text()))
        except FileNotFoundError:
            code = child.returncode
            how = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended with exit code {code}"
            )
            return Result(FAILED, f"the check's process {how}{_last_line(log)}")
        finally:
            answer.unlink(missing_ok=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    """The child and what it has left in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # in the driver no signal ends it
        child.wait(5.0)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1][:300]}" if lines else ""
