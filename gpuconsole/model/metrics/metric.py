"""What a metric is."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "distribution"]


class Metric(msgspec.Struct, frozen=True):
    """One named quantity. `source` names the reader that produces it on its usual device; `needs` is the least hardware.

    `history`: whether its past is kept; of what hardly ever changes only the present is.
    """

    name: str
    unit: str
    kind: Kind
    source: str
    meaning: str
    needs: str = "any"
    history: bool = True


def declare(name: str, unit: str, source: str, meaning: str, kind: Kind = "gauge", needs: str = "any", history: bool = True) -> Metric:
    return Metric(name=name, unit=unit, kind=kind, source=source, meaning=meaning, needs=needs, history=history)
