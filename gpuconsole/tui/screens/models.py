"""The analytical models beside the measurement, and the processes of the run."""

from __future__ import annotations

from gpuconsole.report.page import Lines
from gpuconsole.report.run.models import model_lines, summary
from gpuconsole.tui.screens.base import ListScreen


class ModelsScreen(ListScreen):
    """The formula and the source of the selected row stand under the table."""

    NAME = "models"
    TITLE_TEXT = "Models and measurement"

    def lines(self, width: int, height: int) -> Lines:
        return model_lines(self._view, width, height)

    def summary(self) -> str:
        return summary(self._view.run)
