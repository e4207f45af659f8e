"""How often a worker sends: the worker's own loop in this process, at the other end a channel that only notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuconsole.agent.account import StepAccount
from gpuconsole.agent.inbox import Inbox
from gpuconsole.wire.events import Event, MarkedSteps, Resume, Start, Stop
from gpuconsole.workloads import worker as module
from gpuconsole.workloads.worker import Worker
from tests.workloads.small import small_gpt_loop

SELDOM_S = 0.4


class Noting:
    """Answers the first message of a run at its low rate that came late with a command, and the sixth after that with the end."""

    dropped = 0

    def __init__(self, inbox: Inbox, account: StepAccount) -> None:
        self._inbox = inbox
        self._account = account
        self.times: list[float] = []
        self.asked_at = 0

    def send(self, event: Event) -> None:
        if not isinstance(event, MarkedSteps):
            return
        self.times.append(event.t)
        if self._account.low_rate and self.gaps[-1] >= SELDOM_S and not self.asked_at:
            self.asked_at = len(self.times)
            self._inbox.put(Resume())
        if self.asked_at and len(self.times) == self.asked_at + 6:
            self._inbox.put(Stop())

    def flush(self) -> bool:
        return True

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


def test_a_run_that_is_left_alone_tells_of_itself_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.02)
    monkeypatch.setattr(module, "LOW_RATE_FLUSH_S", SELDOM_S)
    monkeypatch.setattr(module, "LOW_RATE_AFTER_S", 0.5)
    inbox = Inbox()
    loop = small_gpt_loop(tmp_path)
    channel = Noting(inbox, loop.account)
    Worker(channel, inbox, loop, Start("training.gpt", loop.knobs, "cpu")).run()  # type: ignore[arg-type]
    loop.close()
    asked = channel.asked_at
    assert channel.times[asked - 2] - channel.times[0] >= 0.4, "often for as long as it is new"
    assert min(channel.gaps[: asked - 2]) < SELDOM_S / 2
    assert min(channel.gaps[asked:]) < SELDOM_S / 2, "and again once somebody asked for something"
