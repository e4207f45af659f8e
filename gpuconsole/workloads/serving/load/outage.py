"""Outages of a model server, from the client's view."""

from __future__ import annotations

from collections import deque

from gpuconsole.workloads.serving.load.client import connection_problem

SILENCE_S = 3.5
"""The shortest silence that is an outage: a message within 5 s needs a limit below 5 s."""
SILENCE_FACTOR = 2.0
REMEMBERED_S = 60.0
"""A silence that ends with a token is normal for this load: long prompts, compilation. For this time the limit is SILENCE_FACTOR times that silence."""
FAILING_S = 2.0
FAILURES = 5
"""Failures in a row, over at least FAILING_S, after which every request fails. Fewer failures occur by chance where half of the requests fail."""
STALLED_S = 1.0
"""A tick that is later than this time means that the generator itself stood still."""


class Outage:
    """The state of a server from the times of tokens and failures: `since` is None while the server answers, otherwise `why` is one line.
    `failure`: the last failure since the last token.

    A failed connection without another open answer is an outage at once. The other causes are silence on all open requests, and failures
    of all requests. An outage ends with the next token. All times are seconds on the clock of `agent.clock`.
    """

    def __init__(self, t: float) -> None:
        self.since: float | None = None
        self.why = ""
        self._quiet_since = t
        self._silences: deque[tuple[float, float]] = deque()
        self._ticked = t
        self._failing_since: float | None = None
        self._failures = 0
        self.failure = ""

    def begin(self, t: float) -> None:
        """Forget all that was: the load begins, or begins again after a pause."""
        self.since, self.why = None, ""
        self._forget_failures()
        self._quiet_since = self._ticked = t

    def opened(self, t: float) -> None:
        """A request was sent while no request was open: silence begins here."""
        self._quiet_since = t

    def data(self, t: float) -> None:
        """Data without a token arrived, for example a comment that keeps the connection alive."""
        self._quiet_since = max(self._quiet_since, t)

    def token(self, t: float) -> bool:
        """A token arrived. Returns whether an outage ends."""
        silence, self._quiet_since = t - self._quiet_since, t
        if silence * SILENCE_FACTOR > SILENCE_S and connection_problem(self.failure) is None:
            self._silences.append((t, silence))
        if self._failures:
            self._forget_failures()
        ended = self.since is not None
        if ended:
            self.since, self.why = None, ""
        return ended

    def failed(self, t: float, error: str, streams: int) -> None:
        """A request failed with `error` while `streams` other answers were arriving."""
        if self._failing_since is None:
            self._failing_since = t
        self._failures += 1
        self.failure = error
        if not streams and (words := connection_problem(error)):
            self._down(words, self._failing_since)

    def failing_s(self, t: float) -> float:
        """Seconds since the first failure after the last token; 0 without such a failure."""
        return t - self._failing_since if self._failing_since is not None else 0.0

    def tick(self, t: float, waiting: int, oldest: float, streams: int, *, patient: bool = False) -> None:
        """Decide anew. `waiting` requests are open, the first of them since `oldest`; `streams` of them receive an answer.

        `patient`: silence is no outage, because a probe changes the load.
        """
        stood, self._ticked = t - self._ticked, t
        if stood > STALLED_S:  # what arrived in this time is not read yet
            self._quiet_since += stood
            oldest += stood
        if patient:
            self._quiet_since = t
        silence = t - self._quiet_since
        silent = waiting > 0 and silence > self._limit(t)
        broken = connection_problem(self.failure) if self._failures and not streams else None
        if broken:
            self._down(broken, self._failing_since)
        elif self._all_fail(t) and (silent or not waiting or t - oldest < FAILING_S):
            self._down(f"every request fails: {self.failure}", self._failing_since)
        elif silent:
            self._down(f"{waiting} {'request waits' if waiting == 1 else 'requests wait'} without an answer", self._quiet_since)

    def _all_fail(self, t: float) -> bool:
        return self._failures >= FAILURES and self.failing_s(t) > FAILING_S

    def _forget_failures(self) -> None:
        self._failing_since, self._failures, self.failure = None, 0, ""

    def _limit(self, t: float) -> float:
        """The longest normal silence in seconds."""
        while self._silences and t - self._silences[0][0] > REMEMBERED_S:
            self._silences.popleft()
        return max(SILENCE_S, SILENCE_FACTOR * max((silence for _, silence in self._silences), default=0.0))

    def _down(self, why: str, since: float | None) -> None:
        self.why = why
        if self.since is None:
            self.since = since
