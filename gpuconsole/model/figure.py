"""What an analytical model says, beside what was measured."""

from __future__ import annotations

import msgspec


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One quantity: as a formula predicts it, and as it was measured. Either may be missing, with the reason in `note`.

    `formula` is the model in one line with its source; `source` says where the measurement comes from.
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
        """How far the prediction lies from the measurement, as a share of it; None where one of them is missing."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1
