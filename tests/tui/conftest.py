"""What the tests of the screen share: short waits of Textual's pilot."""

from __future__ import annotations

import pytest
import textual.pilot

MAX_S = 0.1
"""The pilot waits after each key until this process is idle. A busy thread of an earlier test would
make each wait a second long."""


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_idle = textual.pilot.wait_for_idle

    async def short_wait(min_sleep: float = 0.0, max_sleep: float = MAX_S) -> None:
        await wait_for_idle(min_sleep, min(max_sleep, MAX_S))

    monkeypatch.setattr(textual.pilot, "wait_for_idle", short_wait)
