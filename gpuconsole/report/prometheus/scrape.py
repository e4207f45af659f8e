"""The data of one scrape, copied from the session state."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from dataclasses import dataclass
from typing import NamedTuple

from gpuconsole.diagnosis.models.figures.run import with_figures
from gpuconsole.model.machine import Device
from gpuconsole.session.freshness import (
    fresh_values,
    reported_at,
    sampler_silence_s,
    sampler_up,
    stale_s,
    stuck_s,
    why_not_fresh,
)
from gpuconsole.session.readings import USUAL
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now

ANSWER_S = 5.0


class NoAnswer(RuntimeError):
    """A scrape is not possible now; the message is one line."""


class ServingRun(NamedTuple):
    """An active serving run. `verdict`: see `model.run.Validity`; empty before a request counts."""

    scenario: str
    verdict: str
    server_up: bool


class AttainedRun(NamedTuple):
    """An active run with its reached share of the attainable rate, and what limits the run at the attainable rate."""

    scenario: str
    bound: str
    ratio: float


@dataclass(frozen=True)
class Scrape:
    """The fresh values, by device and metric, and the reasons for missing values. Immutable.

    `usual`: for each device, the metrics that came from its usual reader. `sources`: for each source, its stuck time and its period in seconds.
    """

    devices: tuple[Device, ...]
    driver: str
    values: dict[str, dict[str, float]]
    usual: dict[str, frozenset[str]]
    unavailable: dict[str, dict[str, str]]
    lost: dict[str, str]
    last_xid: dict[str, int]
    ages_s: dict[str, float]
    sources: dict[str, tuple[float, float]]
    sampler_up: bool
    sampler_silent_s: float
    sampler_restarts: int
    not_fresh: str
    serving: ServingRun | None = None
    attained: AttainedRun | None = None

    def device(self, name: str) -> Device | None:
        return next((device for device in self.devices if device.id == name), None)


def scrape(state: SessionState, t: float) -> Scrape:
    """The state at `t`, a time on the clock of its events."""
    now, readings = state.session_time(t), state.readings
    silent_s = sampler_silence_s(state, now)
    values = fresh_values(state, now)
    ages = {device.id: now - at for device in state.devices if (at := reported_at(state, device.id)) is not None}
    no_gpu = {"gpu": {"gpu.*": state.no_gpu_reason}} if state.no_gpu_reason else {}
    return Scrape(
        devices=tuple(state.devices),
        driver=state.driver or "",
        values=values,
        usual={
            device: frozenset(metric for metric, key, _ in readings.values(device) if readings.readers.get(key, USUAL) == USUAL)
            for device in values
        },
        unavailable=no_gpu | {device: dict(reasons) for device, reasons in state.unavailable.items()},
        lost=dict(state.lost),
        last_xid=dict(state.last_xid),
        ages_s=ages,
        sources={name: (stuck_s(source, t), source.period_s) for name, source in state.sources.items()},
        sampler_up=sampler_up(state, now),
        sampler_silent_s=silent_s if silent_s > stale_s(state) else 0.0,
        sampler_restarts=state.sampler_restarts,
        not_fresh=why_not_fresh(state, now),
        serving=_serving(state),
        attained=_attained(state),
    )


def _serving(state: SessionState) -> ServingRun | None:
    record = state.record
    if record is None or record.serving is None or record.closed_t is not None:
        return None
    found = run_now(state, record).validity
    return ServingRun(record.run.scenario, found.verdict if found else "", record.serving.outages.current is None)


def _attained(state: SessionState) -> AttainedRun | None:
    record = state.record
    if record is None or record.closed_t is not None:
        return None
    found = with_figures(run_now(state, record), state.devices, state.environment.calibration, lambda name: ()).attainable
    share = found.share_ratio if found is not None else None
    return AttainedRun(record.run.scenario, found.bound or "", share) if found is not None and share is not None else None


class LoopScraper:
    """Takes scrapes for other threads. The event loop that applies the events also copies `state`, so a scrape never contains half an event."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Allow scrapes. Call this method on the event loop that applies the events."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def __call__(self) -> Scrape:
        """Take a scrape. Raises NoAnswer if the loop has not begun, has ended, or does not answer within ANSWER_S."""
        answer: concurrent.futures.Future[Scrape] = concurrent.futures.Future()

        def on_loop() -> None:
            try:
                answer.set_result(scrape(self._state, time.monotonic()))
            except Exception as error:  # for the thread that waits
                answer.set_exception(error)

        if self._loop is None:
            raise NoAnswer("the session has not begun")
        try:
            self._loop.call_soon_threadsafe(on_loop)
        except RuntimeError:
            raise NoAnswer("the session has ended") from None
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            raise NoAnswer(f"the console has not answered for {ANSWER_S:.0f} s") from None
