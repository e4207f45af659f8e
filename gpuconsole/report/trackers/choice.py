"""Which trackers there are, and what the command line says of them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # every command imports this module
    from gpuconsole.report.trackers.readings import Tracker


class Kind(NamedTuple):
    """`needs`: the module without which its extra, which has the name of the tracker, is not
    installed. `takes`: what may follow `=`."""

    name: str
    module: str
    class_name: str
    needs: str
    takes: str = ""


KINDS = (
    Kind("tensorboard", "tensorboard", "TensorBoard", "tensorboard", "FOLDER"),
    Kind("wandb", "wandb", "WeightsAndBiases", "wandb"),
    Kind("mlflow", "mlflow", "MLflow", "mlflow"),
    Kind("otlp", "otlp", "OpenTelemetry", "opentelemetry.exporter.otlp.proto.http"),
)
BY_NAME = {kind.name: kind for kind in KINDS}
USAGE = ", ".join(kind.name + (f"[={kind.takes}]" if kind.takes else "") for kind in KINDS)


class TrackerChoice(NamedTuple):
    """A tracker that the user names."""

    kind: Kind
    value: str = ""


def choice(text: str) -> TrackerChoice:
    """`wandb`, `tensorboard=FOLDER`. Raises ValueError."""
    name, equals, value = text.partition("=")
    kind = BY_NAME.get(name)
    if kind is None or bool(equals) > bool(kind.takes) or (equals and not value):
        raise ValueError(f"{text}: allowed are {USAGE}")
    return TrackerChoice(kind, value)


def why_not(kind: Kind) -> str:
    """Why the tracker cannot be used here, with the command that mends it; empty where it can."""
    try:
        library = importlib.util.find_spec(kind.needs)
    except ModuleNotFoundError:
        library = None
    if library is not None:
        return ""
    # it reads the metadata of packages, which takes 16 ms
    from gpuconsole.host.installation import install_command

    return f"{kind.name} is not installed: {install_command(kind.name)}"


def open_tracker(kind: Kind, value: str) -> Tracker:
    """Import the library of the tracker, and make the tracker."""
    make: Callable[[str], Tracker] = getattr(_module(kind), kind.class_name)
    return make(value)


def _module(kind: Kind) -> ModuleType:
    return importlib.import_module(f"gpuconsole.report.trackers.{kind.module}")
