"""The data of one scrape, copied from the session state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpuconsole.diagnosis.models.run import with_figures
from gpuconsole.model.machine import Device
from gpuconsole.session.freshness import (
    fresh_values,
    reported_at,
    sampler_silence_s,
    sampler_up,
    stale_s,
    stuck_s,
)
from gpuconsole.session.gpu_state import GpuState, unreadable, whole_gpus
from gpuconsole.session.machine import USUAL
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now, seen_now, states_now


class ServingRun(NamedTuple):
    """An active serving run. `verdict`: see `model.run.Validity`; empty before a request counts."""

    scenario: str
    verdict: str
    server_up: bool


class AttainedRun(NamedTuple):
    """An active run with its reached share of the attainable rate, and what limits the run at the
    attainable rate."""

    scenario: str
    bound: str
    ratio: float


@dataclass(frozen=True)
class Scrape:
    """The fresh values, by device and metric, and the reasons for missing values. Immutable.

    `usual`: for each device, the metrics that came from its usual reader. `sources`: for each
    source, its stuck time and its period in seconds.
    """

    devices: tuple[Device, ...]
    driver: str
    values: dict[str, dict[str, float]]
    usual: dict[str, frozenset[str]]
    unavailable: dict[str, dict[str, str]]
    lost: dict[str, str]
    unreadable: dict[str, str]
    states: dict[str, GpuState]
    last_xid: dict[str, int]
    ages_s: dict[str, float]
    sources: dict[str, tuple[float, float]]
    sampler_up: bool
    sampler_silent_s: float
    sampler_restarts: int
    serving: ServingRun | None = None
    attained: AttainedRun | None = None

    def device(self, name: str) -> Device | None:
        return next((device for device in self.devices if device.id == name), None)


def scrape(state: SessionState, t: float) -> Scrape:
    """The state at `t`, a time on the clock of its events."""
    now, readings = state.session_time(t), state.readings
    silent_s = sampler_silence_s(state, now)
    values = fresh_values(state, now)
    ages = {
        device.id: now - at
        for device in state.devices
        if (at := reported_at(state, device.id)) is not None
    }
    no_gpu = {"gpu": {"gpu.*": state.no_gpu_reason}} if state.no_gpu_reason else {}
    return Scrape(
        devices=tuple(state.devices),
        driver=state.driver or "",
        values=values,
        usual={
            device: frozenset(
                metric
                for metric, key, _ in readings.values(device)
                if readings.readers.get(key, USUAL) == USUAL
            )
            for device in values
        },
        unavailable=no_gpu
        | {device: dict(reasons) for device, reasons in state.unavailable.items()},
        lost=dict(state.lost),
        unreadable=unreadable_gpus(state, now),
        states=states_now(state, now),
        last_xid={gpu: [*times][-1] for gpu, times in state.xid_times.items()},
        ages_s=ages,
        sources={
            name: (stuck_s(source, t), source.period_s) for name, source in state.sources.items()
        },
        sampler_up=sampler_up(state, now),
        sampler_silent_s=silent_s if silent_s > stale_s(state) else 0.0,
        sampler_restarts=state.sampler_restarts,
        serving=_serving(state),
        attained=_attained(state),
    )


def unreadable_gpus(state: SessionState, now: float) -> dict[str, str]:
    """The GPUs that give no value, with the reason. `now`: session seconds."""
    seen = seen_now(state, now)
    return {gpu.id: why for gpu in whole_gpus(state.devices) if (why := unreadable(seen, gpu.id))}


def _serving(state: SessionState) -> ServingRun | None:
    record = state.record
    if record is None or record.serving is None or record.closed_t is not None:
        return None
    validity = run_now(state, record).validity
    return ServingRun(
        record.run.scenario,
        validity.verdict if validity else "",
        record.serving.outages.current is None,
    )


def _attained(state: SessionState) -> AttainedRun | None:
    record = state.record
    if record is None or record.closed_t is not None:
        return None
    attainable = with_figures(
        run_now(state, record), state.devices, state.environment.calibration, lambda name: ()
    ).attainable
    if attainable is None or attainable.share_ratio is None:
        return None
    return AttainedRun(record.run.scenario, attainable.bound or "", attainable.share_ratio)
