"""MLflow: a run of its own, with the server and the experiment of MLflow's environment
variables."""

from __future__ import annotations

import os

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from gpuconsole.report.trackers.readings import Final, Point, SessionFacts, TrackerEvent

EXPERIMENT = "gpuconsole"
MAX_CHARACTERS = 5000
"""Of a parameter or a tag, which MLflow limits."""


class MLflow:
    def __init__(self, _: str = "") -> None:
        self._client = MlflowClient()

    def begin(self, facts: SessionFacts) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        number = (
            experiment.experiment_id
            if experiment is not None
            else self._client.create_experiment(name)
        )
        self._run = self._client.create_run(number, run_name=facts.title).info.run_id
        params = [Param(name, value[:MAX_CHARACTERS]) for name, value in facts.values.items()]
        self._client.log_batch(self._run, params=params)

    def log(self, point: Point) -> None:
        """The step of a metric is the second of the session."""
        at = round(point.wall * 1000), round(point.elapsed_s)
        self._client.log_batch(
            self._run,
            metrics=[Metric(reading.name, reading.value, *at) for reading in point.readings],
        )

    def note(self, event: TrackerEvent) -> None:
        self._client.set_tag(
            self._run, f"{event.kind}.{event.name}"[:250], event.text[:MAX_CHARACTERS]
        )

    def end(self, final: Final) -> None:
        self.log(final.point)
        self._client.log_text(self._run, final.page(), "report.html")
        self._client.set_terminated(self._run)
