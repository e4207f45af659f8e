"""What happened around a latency peak: the cause is named, and nothing else."""

from __future__ import annotations

import random
import statistics

import pytest

from gpuconsole.diagnosis.incident import _of_latency, explain, peaks
from gpuconsole.model.incident import Incident
from gpuconsole.model.serving import Fact, ServerFacts
from gpuconsole.session.history import History
from gpuconsole.wire.events import AnyEvent, ServerKnown, ServerState
from tests.fakes.server_day import HOUR, KINDS, WALL, day

CAUSES = {
    "preemptions": {"preemptions", "kv_cache"},
    "prompts": {"prompts"},
    "answers": {"answers"},
    "clock": {"clock", "thermal"},
    "restart": {"restart"},
    "process": {"process"},
    "arrivals": {"arrivals"},
    "slow": set(),
}
AT = 5400.0


def history(
    happens: dict[float, str | tuple[str, float]],
    seconds: float = 2 * HOUR,
    seed: int = 1,
    without: str = "",
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


EVENTS: dict[float, tuple[str, float]] = {
    2400.0: ("preemptions", 110.0),
    3600.0: ("standstill", 15.0),
    5400.0: ("arrivals", 60.0),
    6000.0: ("prompts", 60.0),
    8005.0: ("answers", 60.0),
    9077.0: ("restart", 30.0),
    10_800.0: ("outage", 17.0),
    12_800.0: ("slow", 60.0),
}
FOUND = {"standstill": "standstill", "outage": "outage", "restart": "restart"}


@pytest.fixture(scope="module")
def eventful() -> History:
    """Four hours with eight events, a standstill of 15 s 20 minutes after a peak of 110 s."""
    return history({**EVENTS}, 4 * HOUR)


@pytest.mark.parametrize("at", EVENTS)
def test_each_of_many_events_is_named_at_its_time(eventful: History, at: float) -> None:
    kind, lasts = EVENTS[at]
    incident = explain(eventful, WALL + at)
    assert incident.found == FOUND.get(kind, "peak") and incident.episode is not None
    assert abs(incident.episode.begun - WALL - at) <= 10
    assert causes(incident) == (CAUSES.get(kind, set()) - {incident.found}), kind
    if kind == "outage":
        (part,) = incident.episode.parts
        assert part.ended - part.begun == pytest.approx(lasts, abs=2) and incident.peak is None
        assert incident.others[0].begun == pytest.approx(WALL + 9077, abs=20)
    else:
        assert incident.peak is not None and not incident.others


def test_without_a_time_all_events_are_listed_and_the_one_that_cost_most_is_explained(
    eventful: History,
) -> None:
    incident = explain(eventful, None)
    assert incident.episode is not None and incident.episode.parts[0].kind == "outage"
    begun = sorted(episode.begun - WALL for episode in [incident.episode, *incident.others])
    assert begun == pytest.approx(list(EVENTS), abs=10)


def test_the_nearest_counts_not_the_highest() -> None:
    near = history({AT - 200: "prompts", AT: ("standstill", 30.0)})
    for asked, begun in ((AT - 130, AT - 200), (AT - 20, AT)):
        incident = explain(near, WALL + asked)
        assert incident.found == "nothing" and incident.episode is not None
        assert incident.episode.begun == pytest.approx(WALL + begun, abs=10)


def test_a_time_far_from_all_names_the_nearest_peak(eventful: History) -> None:
    incident = explain(eventful, WALL + 7200)
    assert (incident.found, incident.episode, incident.changes) == ("nothing", None, [])
    assert incident.others[0].begun == pytest.approx(WALL + 8005, abs=10)


def test_a_minute_is_asked_whole(eventful: History) -> None:
    assert explain(eventful, WALL + 10_770, WALL + 10_830).found == "outage"
    assert explain(eventful, WALL + 10_770).found == "nothing"


def test_a_time_that_was_not_recorded_says_so() -> None:
    built = History()
    for event in day({}, 2 * HOUR):
        if not (isinstance(event, ServerState) and 3000 < event.t < 3100):
            built.add(event)
    assert explain(built, WALL + 3050).found == "no readings"
    assert explain(built, WALL + 3200).found == "nothing"


@pytest.mark.parametrize(
    ("name", "usual", "high", "found"),
    [
        ("queue_s", 0.0058, 0.021, 0),
        ("queue_s", 0.0058, 0.21, 1),
        ("ttft_s", 0.02, 0.08, 0),
        ("ttft_s", 0.02, 0.4, 1),
        ("itl_s", 0.002, 0.006, 0),
    ],
)
def test_a_rise_that_nobody_notices_is_no_peak(
    name: str, usual: float, high: float, found: int
) -> None:
    series = {window: high if 400 <= window < 406 else usual for window in range(600)}
    assert len(list(_of_latency(name, series))) == found


def test_a_peak_upon_a_new_level_is_seen_and_the_level_too() -> None:
    """The level rises for hours: no later peak is hidden by it."""
    series = {window: 0.1 if window < 300 else 0.5 for window in range(1500)}
    series |= dict.fromkeys(range(1000, 1006), 2.5)
    found = [(peak.begun, peak.ended) for peak in _of_latency("ttft_s", series)]
    assert sorted(found) == [(3000.0, 15_000.0), (10_000.0, 10_060.0)]


def test_an_engine_that_counts_at_the_end_of_a_request_does_not_stand_still() -> None:
    """One user, whose answers take 8 to 14 s, and whose tokens are counted when they end."""
    built, chance, t, tokens = History(), random.Random(2), 0.0, 0.0
    ends = chance.uniform(8, 14)
    while t < HOUR:
        if t >= ends:
            tokens, ends = tokens + 100, t + chance.uniform(8, 14)
        built.add(ServerState(t, {"requests_running": 1.0}, {"generation_tokens": tokens}))
        t += 1
    assert built.counts_progress and not built.standstills()
    for second in range(60):
        built.add(ServerState(t + second, {"requests_running": 1.0}, {"generation_tokens": tokens}))
    (hung,) = built.standstills()
    assert hung.ended - hung.t >= 60


@pytest.mark.parametrize(("engine", "hangs"), [("vllm", 1), ("sglang", 0)])
def test_gauges_that_sglang_writes_late_are_no_standstill(engine: str, hangs: int) -> None:
    """After the last request SGLang's page shows it as running for up to 30 s more."""
    built = History()
    built.add(ServerKnown(0.0, ServerFacts(engine=Fact(engine, "test"))))
    for second in range(90):
        tokens = {"generation_tokens": 10.0 * min(second, 60)}
        gauges = {"requests_running": 1.0, "kv_cache_usage_ratio": 0.5}
        built.add(ServerState(float(second), gauges, tokens))
    assert len(built.standstills()) == hangs


def test_one_counter_that_falls_is_no_restart() -> None:
    built = History()
    for t in range(10):
        totals = dict.fromkeys("abcd", float(t)) | {"e": 5.0 if t < 5 else 1.0}
        built.add(ServerState(float(t), {}, totals))
    assert not built.events and sum(built.rate("a").values()) == pytest.approx(0.9)


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
    assert len(incident.others) == 1


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
