"""The arrival of requests: from users that wait for each answer (closed loop), or at a fixed rate (open loop)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine

from gpuconsole.agent.clock import now
from gpuconsole.model.knobs.catalogue import Knobs

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 1.0
TRIES_PER_S = 5.0
"""Mean number of requests per second of all users together while the server is down: few failures, and the return of the server shows within 1 s."""


class Traffic:
    """Calls `ask(due)` for every request; `ask` returns whether the request succeeded. `knobs` may change at any time.

    Closed loop (`request_rate` 0): `concurrency` users; each sends the next request after the answer, or shortly after a failure.
    Open loop: `request_rate` requests per second with gamma-distributed intervals of mean 1/rate and shape `burstiness` (1: Poisson;
    lower: bursts; the definition of `vllm bench serve`), at most `max_concurrency` open requests.
    """

    def __init__(self, knobs: Knobs, ask: Callable[[float], Coroutine[None, None, bool]], seed: int) -> None:
        self.knobs = knobs
        self._ask = ask
        self._random = random.Random(seed)
        self._users: dict[int, asyncio.Task[None]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._changed = asyncio.Event()
        self._up = asyncio.Event()
        self._up.set()
        self.under_way: set[asyncio.Task[bool]] = set()

    async def run(self) -> None:
        """Run forever. Cancelling it cancels the open requests."""
        try:
            while True:
                await self._open.wait()
                if float(self.knobs["request_rate"]) > 0:
                    await self._arrivals()
                else:
                    self._seat_users()
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self.break_off()

    def change(self, knobs: Knobs) -> None:
        """Use new knobs from the next request on."""
        self.knobs = knobs
        self._changed.set()

    def hold(self) -> None:
        """Stop sending, and cancel the open requests."""
        self._open.clear()
        self._changed.set()
        self.break_off()

    def go_on(self) -> None:
        self._open.set()
        self._changed.set()

    def server_is_down(self) -> None:
        """Users whose requests fail now send about TRIES_PER_S requests together, until `server_is_up`."""
        self._up.clear()

    def server_is_up(self) -> None:
        """All users go on at once."""
        self._up.set()

    def break_off(self) -> None:
        for task in (*self._users.values(), *self.under_way):
            task.cancel()
        self._users.clear()

    def _seat_users(self) -> None:
        self._users = {seat: user for seat, user in self._users.items() if not user.done()}
        for seat in range(int(self.knobs["concurrency"])):
            if seat not in self._users:
                self._users[seat] = asyncio.create_task(self._user(seat))

    def _has_seat(self, seat: int) -> bool:
        return self._open.is_set() and not float(self.knobs["request_rate"]) and seat < int(self.knobs["concurrency"])

    async def _user(self, seat: int) -> None:
        backoff = FIRST_BACKOFF_S
        while self._has_seat(seat):
            if await self._launch(now()):
                backoff = FIRST_BACKOFF_S
            else:
                await self._wait_after_failure(backoff)
                backoff = min(LONGEST_BACKOFF_S, 2 * backoff)

    async def _wait_after_failure(self, backoff: float) -> None:
        pause_s = backoff * self._random.uniform(0.5, 1.0)
        if self._up.is_set():
            await asyncio.sleep(pause_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(pause_s, self._random.expovariate(TRIES_PER_S / len(self._users)))):
                await self._up.wait()

    async def _arrivals(self) -> None:
        """Send requests in an open loop. Due times follow the clock, not the last sending time, so that lateness does not reduce the load."""
        self._changed.clear()
        due = now()
        while self._open.is_set() and (rate := float(self.knobs["request_rate"])) > 0:
            shape = float(self.knobs["burstiness"])
            due += self._random.gammavariate(shape, 1 / (rate * shape))
            if (wait := due - now()) > 0 and await self._changes_within(wait):
                continue
            while len(self.under_way) >= int(self.knobs["max_concurrency"]) and self._open.is_set():
                await asyncio.wait(self.under_way, return_when=asyncio.FIRST_COMPLETED)
            self._launch(due)
            await asyncio.sleep(0)

    async def _changes_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def _launch(self, due: float) -> asyncio.Task[bool]:
        task = asyncio.create_task(self._ask(due))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task
