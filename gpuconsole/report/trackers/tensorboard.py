"""TensorBoard: an event file, without torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event as EventRecord
from tensorboard.plugins.scalar.summary import scalar_pb
from tensorboard.plugins.text.summary import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from gpuconsole.host.files import new_folder, write_whole
from gpuconsole.report.trackers.readings import Final, Point, SessionFacts, TrackerEvent

FOLDER = "runs"
"""The folder that `tensorboard --logdir` and torch's SummaryWriter use."""


class TensorBoard:
    """Writes `FOLDER/gpuconsole-DATE-TIME`, or the folder that the user names; the page is
    `report.html` there."""

    def __init__(self, folder: str = "") -> None:
        self._folder = (
            Path(folder)
            if folder
            else new_folder(Path(FOLDER) / time.strftime("gpuconsole-%Y%m%d-%H%M%S"))
        )

    def begin(self, facts: SessionFacts) -> None:
        self._writer = EventFileWriter(str(self._folder))
        rows = "\n".join(f"| {name} | {value} |" for name, value in facts.values.items())
        self._add(text_pb("facts", f"{facts.title}\n\n| | |\n|---|---|\n{rows}"), time.time(), 0.0)

    def log(self, point: Point) -> None:
        for reading in point.readings:
            self._add(
                scalar_pb(reading.name.replace(":", "_"), reading.value),
                point.wall,
                point.elapsed_s,
            )
        self._writer.flush()

    def note(self, event: TrackerEvent) -> None:
        self._add(text_pb(f"{event.kind}/{event.name}", event.text), event.wall, event.elapsed_s)

    def end(self, final: Final) -> None:
        self.log(final.point)
        self._writer.close()
        write_whole(self._folder / "report.html", final.page().encode(), follow=False)

    def _add(self, summary: Any, wall: float, elapsed_s: float) -> None:
        """The step of the record is the second of the session."""
        self._writer.add_event(EventRecord(summary=summary, wall_time=wall, step=round(elapsed_s)))
