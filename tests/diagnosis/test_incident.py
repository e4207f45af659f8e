"""What happened around a latency peak: the cause is named, and nothing else."""

from __future__ import annotations

import random
import statistics

import pytest

from gpuconsole.diagnosis.incident import _of_latency, explain, peaks
from gpuconsole.model.incident import Incident
from gpuconsole.session.history import History
from gpuconsole.wire.events import AnyEvent, ServerState
from tests.fakes.server_day import HOUR, KINDS, WALL, day

CAUSES = {
    "preemptions": {"preemptions", "kv_cache"},
    "prompts": {"prompts"},
    "clock": {"clock", "thermal"},
    "restart": {"restart"},
    "process": {"process"},
    "arrivals": {"arrivals"},
    "slow": set(),
}
AT = 5400.0


def history(
    happens: dict[float, str], seconds: float = 2 * HOUR, seed: int = 1, without: str = ""
) -> History:
    built = History()
    for event in day(happens, seconds, seed=seed):
        if isinstance(event, ServerState) and without:
            event = without_total(event, without)
        built.add(event)
    return built


def without_total(event: ServerState, name: str) -> AnyEvent:
    return ServerState(
        t=event.t,
        gauges=event.gauges,
        totals={key: value for key, value in event.totals.items() if key != name},
    )


def causes(incident: Incident) -> set[str]:
    return {change.name for change in incident.changes if change.kind == "cause"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_is_named_and_nothing_else(kind: str) -> None:
    for seed in (1, 2):
        incident = explain(history({AT: kind}, seed=seed), WALL + AT + 90)
        assert (
            incident.peak is not None
            and abs(incident.peak.begun - WALL - AT) <= 20
            and incident.peak.ratio > 2.5
        )
        assert causes(incident) == CAUSES[kind], seed
        assert {change.name for change in incident.changes if change.kind == "follows"} == {
            "queue",
            "running",
        }
        assert all(AT - 40 <= change.t - WALL <= AT + 60 for change in incident.changes)


def test_figures_stand_beside_a_cause() -> None:
    incident = explain(history({AT: "prompts"}), WALL + AT)
    (change,) = [change for change in incident.changes if change.kind == "cause"]
    before, _, after = change.evidence.partition(" -> ")
    assert before in ("299 tokens", "300 tokens", "301 tokens") and after.startswith("1 2")
    assert (
        "preemptions" in incident.unchanged
        and "restarts" in incident.unchanged
        and not incident.cannot_tell
    )


def test_a_quiet_time_has_no_peak() -> None:
    quiet = history({AT: "prompts"})
    assert explain(quiet, WALL + 3000).peak is None
    assert not peaks(history({}, seed=3))


def test_the_first_minutes_have_nothing_to_be_compared_with() -> None:
    early = "peaks in the first 3 minutes of a recording"
    assert any(
        line.startswith(early)
        for line in explain(history({60.0: "prompts"}, 600), WALL + 70).cannot_tell
    )
    assert any(line.startswith(early) for line in explain(history({}, 100), None).cannot_tell)
    assert not any(line.startswith(early) for line in explain(history({}, 600), None).cannot_tell)


def test_without_a_time_the_highest_peak_counts() -> None:
    incident = explain(history({4000.0: "arrivals", AT: "prompts"}), None)
    assert (
        incident.asked is None
        and incident.peak is not None
        and incident.peak.begun - WALL in (3990.0, 4000.0, 5390.0, 5400.0)
    )


def test_a_signal_that_is_not_recorded_cannot_tell() -> None:
    incident = explain(history({AT: "preemptions"}, without="preemptions"), WALL + AT)
    assert (
        causes(incident) == {"kv_cache"}
        and "preemptions: not in the recording" in incident.cannot_tell
    )
    assert "preemptions" not in incident.unchanged


def test_a_recording_without_latencies_says_so() -> None:
    built = History()
    for event in day({AT: "prompts"}, 2 * HOUR):
        if not isinstance(event, ServerState):
            built.add(event)
    incident = explain(built, WALL + AT)
    assert incident.peak is None and "TTFT: not in the recording" in incident.cannot_tell


def test_answers_of_very_different_lengths_are_no_peaks() -> None:
    """One request in a second, whose times have a heavy tail (a lognormal deviation of 0.7): no
    peak in half a day."""
    chance = random.Random(4)
    series = {
        window: statistics.fmean(chance.lognormvariate(0, 0.7) for _ in range(10))
        for window in range(4320)
    }
    assert not list(_of_latency("e2e_s", series))


@pytest.mark.slow
def test_a_whole_day_without_anything_has_no_peak() -> None:
    assert not peaks(history({}, 24 * HOUR, seed=5))
