"""Weights & Biases: a run of its own. Project, entity, key and offline mode are those of its environment variables."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import wandb

from gpuconsole.report.trackers.readings import Event, Facts, Final, Point

PROJECT = "gpuconsole"


class WeightsAndBiases:
    def __init__(self, _: str = "") -> None:
        pass

    def begin(self, facts: Facts) -> None:
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)  # the terminal is ours; devices are read already
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(project=project, name=facts.title, config=dict(facts.values), settings=settings)
        self._run.define_metric("*", step_metric="elapsed_s")

    def log(self, point: Point) -> None:
        self._run.log({**{reading.name: reading.value for reading in point.readings}, "elapsed_s": point.elapsed_s})

    def note(self, event: Event) -> None:
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
