"""The declaration of a metric."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "distribution"]
Better = Literal["higher", "lower", ""]


class Metric(msgspec.Struct, frozen=True):
    """One named quantity. `source` names the usual reader; `needs` is the oldest hardware that has the metric.

    `better`: which direction is better, for a metric that is no figure of `model.run.Summary`; empty where neither is.
    `history`: whether the session keeps past values. Metrics that hardly ever change keep only the newest value.
    """

    name: str
    unit: str
    kind: Kind
    source: str
    meaning: str
    needs: str = "any"
    history: bool = True
    better: Better = ""


def declare(
    name: str,
    unit: str,
    source: str,
    meaning: str,
    kind: Kind = "gauge",
    needs: str = "any",
    history: bool = True,
    better: Better = "",
) -> Metric:
    return Metric(name=name, unit=unit, kind=kind, source=source, meaning=meaning, needs=needs, history=history, better=better)
