"""Whether a value is fresh: the only place that decides it, for the screen, for the exporter and
for figures that combine two values.

A value is fresh until its reader withdraws it or stops reporting. Metrics that change rarely are
read rarely, so an old value may still be correct: a reader that still reports other values of the
device would have reported a change.
"""

from __future__ import annotations

import math

from gpuconsole.model.text import visible
from gpuconsole.session.machine import SERVER, USUAL, MachineState, is_gpu_source, parent
from gpuconsole.wire.events import SourceState

STALE_S = 5.0
STALE_PERIODS = 3


def stale_s(state: MachineState, device: str = "") -> float:
    """Return the maximum seconds between two reports of a reader: 5, or three times the longest
    period between two readings. A GPU that is slow has a period of its own."""
    of_device = parent(device)
    periods = [
        source.period_s
        for name, source in state.sources.items()
        if not is_gpu_source(name) or name == of_device
    ]
    return max(STALE_S, STALE_PERIODS * max([state.interval_s, *periods]))


def reported_at(state: MachineState, device: str, reader: str = USUAL) -> float | None:
    """The time of the last report of `reader` about `device`. A report about a GPU counts for its
    links too, because links are read less often."""
    reported = state.readings.reported
    times = [
        reported[name][reader]
        for name in {device, parent(device)}
        if reader in reported.get(name, ())
    ]
    return max(times, default=None)


def is_fresh(state: MachineState, device: str, now: float, reader: str = USUAL) -> bool:
    """Whether the values of `reader` about `device` are fresh. `now`: session seconds."""
    if device == SERVER:
        return not why_server_not_fresh(state, now)
    last = reported_at(state, device, reader)
    return last is not None and now - last <= stale_s(state, device)


def why_server_not_fresh(state: MachineState, now: float) -> str:
    """The reason why the newest report of the model server does not describe its present state, in
    one line; empty if it does.

    A report is fresh for 5 s, or for three times the usual time between two reports.
    """
    if state.server_down:
        return f"the server does not answer: {state.server_down}"
    last = reported_at(state, SERVER, SERVER)
    if last is None:
        return "the server has not reported its state"
    age_s = now - last
    return (
        f"the last report of the server is {age_s:.0f} s old"
        if age_s > max(STALE_S, STALE_PERIODS * state.server_period_s)
        else ""
    )


def fresh_value(state: MachineState, key: str, device: str, now: float) -> float | None:
    """The newest value of a series of `device`, if it is fresh."""
    value = state.readings.latest.get(key)
    return (
        value
        if value is not None
        and is_fresh(state, device, now, state.readings.readers.get(key, USUAL))
        else None
    )


def fresh_values(state: MachineState, now: float) -> dict[str, dict[str, float]]:
    """All fresh values, by device and metric."""
    readings = state.readings
    values_of: dict[str, dict[str, float]] = {}
    for device in readings.devices():
        fresh = {
            reader
            for reader in readings.reported.get(device, ())
            if is_fresh(state, device, now, reader)
        }
        values_of[device] = {
            metric: value
            for metric, key, value in readings.values(device)
            if readings.readers.get(key, USUAL) in fresh
        }
    return values_of


def silent_devices(state: MachineState, now: float) -> dict[str, float]:
    """Return the devices whose values are not fresh, with the seconds since the last report of the
    usual reader. A GPU that is stuck has been silent since the list of devices."""
    ages = {
        device: now - reported[USUAL]
        for device, reported in state.readings.reported.items()
        if USUAL in reported
    }
    ages |= {
        name: now - state.devices_t
        for name, source in state.sources.items()
        if is_gpu_source(name) and source.stuck_s and name not in ages
    }
    # most are fresh, or their GPU is: 64 GPUs have more than a thousand links
    fresh = {device for device, age_s in ages.items() if age_s <= STALE_S}
    return {
        device: age_s
        for device, age_s in ages.items()
        if device not in fresh
        and parent(device) not in fresh
        and age_s > stale_s(state, device)
        and not is_fresh(state, device, now)
    }


def slow_gpus(state: MachineState) -> dict[str, str]:
    """Return the GPUs that are not read as the others are, each with the reason: a driver call that
    has not returned, or is slow."""
    return {name: source.detail for name, source in state.sources.items() if is_gpu_source(name)}


def stuck_s(source: SourceState, t: float) -> float:
    """Seconds for which a source has not answered; 0 if it answers. `t`: on the clock of the
    events. A source that was stuck at its last report still counts as stuck."""
    return source.stuck_s + (t - source.t) if source.stuck_s else 0.0


def sampler_silence_s(state: MachineState, now: float) -> float:
    """Seconds since the sampler last sent anything."""
    return now - state.sampler_t if state.sampler_t is not None else 0.0


def sampler_up(state: MachineState, now: float) -> bool:
    """Whether the sampler runs and reports."""
    return not state.sampler_down and sampler_silence_s(state, now) <= stale_s(state)


def why_not_fresh(state: MachineState, now: float) -> str:
    """The reason why samples are not fresh, in one line; empty if they are fresh."""
    if state.sampler_down:
        return state.sampler_down
    limit_s, silent_s = stale_s(state), sampler_silence_s(state, now)
    if silent_s > limit_s:
        return f"the sampler has reported nothing for {silent_s:.0f} s"
    name, longest_s = _longest_stuck(state, now)
    stuck = f"{name} has not answered for {longest_s:.0f} s" if name else ""
    if stuck and (detail := state.sources[name].detail):
        stuck += f": {visible(detail)}"
    slow = {} if stuck else slow_gpus(state)
    for device in state.devices:
        last = reported_at(state, device.id)
        age_s = now - (state.devices_t if last is None else last)
        # a GPU that is stuck by itself leaves the figures of the others fresh
        if age_s > limit_s and device.id not in state.lost and parent(device.id) not in slow:
            return f"the newest sample of {device.id} is {age_s:.0f} s old" + (
                f"; {stuck}" if stuck else ""
            )
    return stuck if longest_s > limit_s else ""


def _longest_stuck(state: MachineState, now: float) -> tuple[str, float]:
    t = now + (state.t0 or 0.0)
    stuck = {
        name: stuck_s(source, t)
        for name, source in state.sources.items()
        if source.stuck_s and not is_gpu_source(name)
    }
    return max(stuck.items(), key=lambda source: source[1], default=("", -math.inf))
