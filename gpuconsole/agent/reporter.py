"""When steps are sent, and what the message holds."""

from __future__ import annotations

from .clock import now
from .loop import Loop
from .protocol import Channel, message

SEND_EVERY_S = 0.25
"""The period of a run that is new or has just received a command: findings wait for the messages. A message takes 0.3 to 0.5 ms of the
training thread between two steps, which is 0.1 to 0.2 % of its time."""

LOW_RATE_EVERY_S = 0.5
"""The period of a run without commands: the period at which the console paints its screen."""

LOW_RATE_AFTER_S = 20.0
"""Time from the first message, or from the first message after a command, to the low rate. A run's first findings appear earlier."""

TRIAL_EVERY_S = 0.05
"""The period within a trial. A block takes 0.35 s and more, so a quarter of a second between its end and the message would make it half as
long again. At 0.3 to 0.5 ms a message this takes about 1 % of the time of both sides of the trial."""


class Reporter:
    """Sends the account's steps at a rate that depends on what happens."""

    def __init__(self, loop: Loop, channel: Channel, rank: int = 0, every_s: float | None = None, low_rate_s: float | None = None) -> None:
        """`every_s`: the period outside a trial. `low_rate_s`: the period at the low rate. None: SEND_EVERY_S, LOW_RATE_EVERY_S."""
        self._loop = loop
        self._channel = channel
        self._rank = rank
        self._every_s = SEND_EVERY_S if every_s is None else every_s
        self._low_rate_s = LOW_RATE_EVERY_S if low_rate_s is None else low_rate_s
        self._sending_s = 0.0
        self.sent_t = now()
        self.active_since: float | None = None
        """The time of the first message since the start or since the last command; None before that message."""

    def due(self) -> bool:
        """Whether it is time for a message."""
        return now() - self.sent_t >= self._period_s()

    def send(self) -> None:
        """Send the steps since the last message. The cost counts as overhead, and lies in the phase `other` of the next step."""
        start = now()
        account = self._loop.account
        self._channel.send(
            message(
                account.tag,
                start,
                **account.fields(self._sending_s),
                memory_bytes=self._loop.peak_memory_bytes(),
                dropped=self._channel.dropped,
                rank=self._rank,
                counters=self._loop.counters(),
            )
        )
        self.sent_t = now()
        if self.active_since is None:
            self.active_since = self.sent_t
        account.low_rate = self.sent_t - self.active_since >= LOW_RATE_AFTER_S
        self._sending_s += self.sent_t - start

    def leave_low_rate(self) -> None:
        """Send at the full rate again: the console has just asked for something."""
        self.active_since, self._loop.account.low_rate = None, False

    def _period_s(self) -> float:
        if self._loop.arm:
            return TRIAL_EVERY_S
        return self._low_rate_s if self._loop.account.low_rate else self._every_s
