"""Run a program as `gpuconsole run --headless` does, and make changes in it, without measuring
their gain.

    python -m benchmarks.own_job.innocence.switched [--keep] [--allow-loader] [--told FILE]
        NAME=VALUE ... -- COMMAND

Each change is made and taken back twice, as in a trial. With `--keep`, each change is made once,
and stays. FILE gets a line for each change: `made`, or why it was refused. The exit code is that of
the command.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuconsole.cli.headless_job import HeadlessJob
from gpuconsole.cli.job import run_if_possible
from gpuconsole.cli.job_work import JobWork, Say, trains
from gpuconsole.cli.output import configure
from gpuconsole.cli.parser import parse
from gpuconsole.cli.scenario import assignments
from gpuconsole.engine.children.worker import WorkerGone, WorkerHandle
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import Value
from gpuconsole.model.scenario import job_scenario

STAYS_S = 0.2
"""How long a change is in force, and how long it is not."""
TIMES = 2


class Switches(JobWork):
    """Makes `changes` one after the other. `told`: the file for the result of each change. If a
    signal ends the job, the signal ends this process too."""

    def __init__(self, changes: Knobs, keep: bool, told: Path | None) -> None:
        self._changes, self._keep, self._file = changes, keep, told
        self.told: dict[str, str] = {}

    async def run(self, engine: LiveSession, say: Say) -> None:
        run = await trains(engine)
        _, worker = engine.control.running()
        for name, value in self._changes.items():
            self.told[name] = "not answered"
            try:
                self.told[name] = await self._switch(worker, name, run.knobs.get(name), value)
            except WorkerGone:
                return

    def report(self) -> str:
        text = "".join(f"{name}: {what}\n" for name, what in self.told.items())
        if self._file is not None:
            self._file.write_text(text)
        return text

    async def _switch(
        self, worker: WorkerHandle, name: str, own: Value | None, value: Value
    ) -> str:
        """Make a change, and return its result in words."""
        for wanted in self._values(own, value):
            if wanted is None:
                return "the program does not have this setting"
            answer = await worker.set_knobs({name: wanted}, int(wanted == value))
            if answer.error:
                return f"refused: {answer.error}"
            self.told[name] = "made"
            await asyncio.sleep(STAYS_S)
        return "made" if self._keep else "made and taken back"

    def _values(self, own: Value | None, value: Value) -> Iterator[Value | None]:
        for _ in range(1 if self._keep else TIMES):
            yield value
            if not self._keep:
                yield own


def main() -> int:
    arguments, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("changes", nargs="*", metavar="NAME=VALUE")
    parser.add_argument(
        "--keep", action="store_true", help="make each change once, and let it stay"
    )
    parser.add_argument(
        "--allow-loader", action="store_true", help="as the option of gpuconsole run"
    )
    parser.add_argument("--told", type=Path, help="the file for the result of each change")
    own = parser.parse_args(arguments)
    tries = [word for change in own.changes for word in ("--try", change)] + [
        "--allow-loader"
    ] * own.allow_loader
    args = parse(["run", "--headless", "--quiet", "--summary", os.devnull, *tries, "--", *command])
    configure(args)
    work = Switches(assignments(args.tries, job_scenario("the job")), own.keep, own.told)
    return run_if_possible(args, HeadlessJob(args, work).run)


if __name__ == "__main__":
    raise SystemExit(main())
