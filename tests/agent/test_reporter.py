"""How often the agent sends: a real loop in this process, and a channel that only notes the
times."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuconsole.agent import service as service_module
from gpuconsole.agent.protocol import Message, Resume, Stop
from gpuconsole.agent.service import Inbox, Service
from gpuconsole.agent.step_breakdown import StepBreakdown
from tests.workloads.small import small_gpt_loop

SELDOM_S = 0.4


class Noting:
    """Puts a command into the inbox at the first late message at the low rate, and Stop at the
    sixth message after it."""

    dropped = 0

    def __init__(self, inbox: Inbox, account: StepBreakdown) -> None:
        self._inbox = inbox
        self._account = account
        self.times: list[float] = []
        self.asked_at = 0

    def send(self, message: Message, /) -> None:
        self.times.append(message["t"])
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


def test_a_run_that_nobody_changes_sends_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SEND_EVERY_S", 0.02)
    monkeypatch.setattr(service_module, "LOW_RATE_EVERY_S", SELDOM_S)
    monkeypatch.setattr(service_module, "LOW_RATE_AFTER_S", 0.5)
    inbox = Inbox()
    loop = small_gpt_loop(tmp_path)
    channel = Noting(inbox, loop.breakdown)
    service = Service(loop, inbox, channel)
    service.begin()
    while service.between_steps():
        loop.step()
    service.end()
    loop.close()
    asked = channel.asked_at
    assert channel.times[asked - 2] - channel.times[0] >= 0.4, "often while the run is new"
    assert min(channel.gaps[: asked - 2]) < SELDOM_S / 2
    assert min(channel.gaps[asked:]) < SELDOM_S / 2, "and again after a command"
