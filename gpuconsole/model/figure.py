"""The prediction of an analytical model next to the measurement."""

from __future__ import annotations

import msgspec


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One quantity with its predicted and its measured value. Either value may be missing; `note` then holds the reason.

    `formula` is the model in one line with its source. `source` names the source of the measurement.
    """

    name: str
    title: str
    unit: str
    predicted: float | None = None
    measured: float | None = None
    formula: str = ""
    source: str = ""
    note: str = ""

    @property
    def error_ratio(self) -> float | None:
        """The error of the prediction over the measurement, 0..1; None where one of the two values is missing."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1
