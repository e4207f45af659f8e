"""The runs that the program has opened in experiment trackers. Their libraries are never imported here, and nothing is logged by them."""

from __future__ import annotations

import re
import sys

from .guard import from_outside

USER = re.compile(r"(?<=://)[^/@]*@")
"""Name and password in an address."""


def open_runs() -> list[dict[str, str]]:
    """The fields of `model.job.TrackerRun` for each open run: `wandb.run`, and MLflow's active run of the thread that trains."""
    runs = []
    for read in (_of_wandb, _of_mlflow):
        try:
            run = read()
        except Exception as problem:  # another version of the library: the run is not found, and the program goes on
            if from_outside(problem):
                raise
            continue
        if run is not None:
            runs.append(run)
    return runs


def _of_wandb() -> dict[str, str] | None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or run.disabled:
        return None
    return {
        "tracker": "wandb",
        "run": str(run.id),
        "project": str(run.project or ""),
        "entity": str(run.entity or ""),
        "address": "" if run.offline else _without_user(run.settings.base_url),
    }


def _of_mlflow() -> dict[str, str] | None:
    mlflow = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow is not None else None
    if mlflow is None or run is None:
        return None
    return {"tracker": "mlflow", "run": str(run.info.run_id), "address": _without_user(mlflow.get_tracking_uri())}


def _without_user(address: str) -> str:
    """The console writes the facts of a job into files: no password may be there."""
    return USER.sub("", str(address))
