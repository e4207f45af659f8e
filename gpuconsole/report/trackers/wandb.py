"""Weights & Biases: a run of its own, with the project, entity, key and mode of W&B's environment variables; or the run that the job has open."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import wandb

from gpuconsole.model.job import TrackerRun
from gpuconsole.report.trackers.readings import JOINED, Event, Facts, Final, Point

PROJECT = "gpuconsole"
QUIET = wandb.Settings(console="off", silent=True, x_disable_stats=True)
"""The terminal is the console's, and the devices are read already."""
WITHOUT_COMMAND = {
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "disable_job_creation": True,
}
"""W&B copies the command line, the folder, the git remote, the list of packages and the code of the process by itself: those of the console, whose
command line holds that of the job."""


def settings(with_command: bool, **more: Any) -> wandb.Settings:
    """The settings of a run. `with_command`: W&B may copy what it copies by itself (`--log-command`)."""
    return QUIET.model_copy(update={**({} if with_command else WITHOUT_COMMAND), **more})


class WeightsAndBiases:
    prefix = ""
    """Of all names."""

    def __init__(self, _: str = "") -> None: ...

    def begin(self, facts: Facts) -> None:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(project=project, name=facts.title, config=dict(facts.values), settings=settings(bool(facts.command)))
        self._run.define_metric("*", step_metric="elapsed_s")

    def log(self, point: Point) -> None:
        values = {self.prefix + reading.name: reading.value for reading in point.readings}
        self._run.log({**values, f"{self.prefix}elapsed_s": point.elapsed_s})

    def note(self, event: Event) -> None:
        self._run.summary[f"{self.prefix}{event.kind}.{event.name}"] = event.text

    def end(self, final: Final) -> None:
        self._run.summary.update({self.prefix + reading.name: reading.value for reading in final.point.readings})
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            page.write_text(final.page(), encoding="utf-8")
            artifact = wandb.Artifact("gpuconsole-report", "report")
            artifact.add_file(str(page))
            self._run.log_artifact(artifact)
            self._run.finish()


class JoinedWeightsAndBiases(WeightsAndBiases):
    """A second writer of the job's run: W&B's shared mode, in which the job stays the first writer and ends the run. Of a run that is offline, a
    second folder with the same id."""

    prefix = JOINED

    def __init__(self, run: TrackerRun) -> None:
        self._joined = run

    def begin(self, facts: Facts) -> None:
        run = self._joined
        second = {"x_primary": False, "x_label": "gpuconsole", "x_update_finish_state": False}
        joined = settings(False, mode="shared" if run.address else "offline", **second)
        if run.address:
            joined.base_url = run.address
        self._run = wandb.init(id=run.run, project=run.project or None, entity=run.entity or None, settings=joined)
        self._run.config.update({self.prefix + name: value for name, value in facts.values.items()})  # type: ignore[no-untyped-call]
        self._run.define_metric(f"{self.prefix}*", step_metric=f"{self.prefix}elapsed_s")
