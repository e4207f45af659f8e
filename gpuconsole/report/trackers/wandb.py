"""Weights & Biases: a run of its own, with the project, entity, key and mode of W&B's environment
variables."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import wandb

from gpuconsole.report.trackers.readings import Final, Point, SessionFacts, TrackerEvent

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
"""W&B copies the command line, the folder, the git remote, the list of packages and the code of the
process by itself: those of the console, whose command line holds that of the job."""


def settings(with_command: bool, **more: Any) -> wandb.Settings:
    """The settings of a run. `with_command`: W&B may copy what it copies by itself
    (`--log-command`)."""
    return QUIET.model_copy(update={**({} if with_command else WITHOUT_COMMAND), **more})


class WeightsAndBiases:
    def __init__(self, _: str = "") -> None: ...

    def begin(self, facts: SessionFacts) -> None:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(
            project=project,
            name=facts.title,
            config=dict(facts.values),
            settings=settings(bool(facts.command)),
        )
        self._run.define_metric("*", step_metric="elapsed_s")

    def log(self, point: Point) -> None:
        values = {reading.name: reading.value for reading in point.readings}
        self._run.log({**values, "elapsed_s": point.elapsed_s})

    def note(self, event: TrackerEvent) -> None:
        self._run.summary[f"{event.kind}.{event.name}"] = event.text

    def end(self, final: Final) -> None:
        self._run.summary.update({reading.name: reading.value for reading in final.point.readings})
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            page.write_text(final.page(), encoding="utf-8")
            artifact = wandb.Artifact("gpuconsole-report", "report")
            artifact.add_file(str(page))
            self._run.log_artifact(artifact)
            self._run.finish()
