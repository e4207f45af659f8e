"""Validity of a serving run, and what an outage of the server leaves out of the figures."""

from __future__ import annotations

import msgspec
import pytest

from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.experiments.compare import compare
from gpuconsole.model import units
from gpuconsole.model.finding import Finding
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import Run, Step, Validity
from gpuconsole.model.serving import WATCHED, Request
from gpuconsole.report.parts import printed
from gpuconsole.report.prometheus.collector import ScrapeCollector
from gpuconsole.report.prometheus.scrape import scrape
from gpuconsole.report.run.diagnosis import details_report
from gpuconsole.report.session import run_text
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot, make_view, run_now
from gpuconsole.wire.events import Requests, RunClosed, RunOpened, ServerState, Steps
from tests.experiments.measured import in_session

KNOBS: Knobs = {
    name: knob.default
    for name, knob in CATALOGUE.items()
    if knob.serving and knob.default is not None
}
REFUSED = "cannot connect: Connection refused"


class Session:
    """A serving run, a tick of one second at a time."""

    def __init__(self) -> None:
        self.state, self.t, self.runq_s, self.dropped = SessionState(), 100.0, 0.0, 0
        self.state.apply(RunOpened(self.t, "1", "serve-chat", "inference.serving", KNOBS, "cpu"))
        self.totals = {"generation_tokens": 0.0, "requests": 0.0}

    def tick(
        self,
        *,
        answered: int = 10,
        failed: int = 0,
        down: str = "",
        since: float = 0.0,
        runq: float = 0.0,
        kind: int = 0,
        in_one_piece: int = 0,
    ) -> None:
        self.t += 1.0
        self.runq_s += runq
        streamed = Request(self.t, 0.0, 0.1, 1.0, 10, 10, (0.1,) * 9, (1.0,) * 9, kind=kind)
        at_once = Request(self.t, 0.0, None, 1.0, 10, 10, kind=kind)
        done = [at_once] * in_one_piece + [streamed] * (answered - in_one_piece)
        broken = [Request(self.t, 0.0, None, None, 10, 0, error=REFUSED, kind=kind)] * failed
        step = Step(int(self.t), self.t, 1.0, answered, 10 * answered, (), kind=kind)
        self.state.apply(Steps(self.t, [step], 0.0, 0.0, 0.0, 0.0))
        self.state.apply(
            Requests(
                self.t,
                [*done, *broken],
                8,
                dropped=self.dropped,
                runq_s=self.runq_s,
                down=down,
                down_since=since if down else 0.0,
            )
        )
        if not down:
            self.totals = {
                "generation_tokens": self.totals["generation_tokens"] + 10.0 * answered,
                "requests": self.totals["requests"] + answered,
            }
            gauges = {
                "requests_running": 8.0,
                "requests_waiting": 2.0,
                "kv_cache_usage_ratio": 0.99,
            }
            self.state.apply(ServerState(self.t, gauges, dict(self.totals)))

    def ticks(self, seconds: int, **what: object) -> None:
        for _ in range(seconds):
            self.tick(**what)  # type: ignore[arg-type]

    def down(self, seconds: int, failed: int = 1) -> None:
        self.ticks(seconds, answered=0, failed=failed, down="connection refused", since=self.t)

    def end(self, state: str = "finished", error: str | None = None) -> Validity:
        self.state.apply(RunClosed(self.t, "1", state, error))  # type: ignore[arg-type]
        return self.now

    @property
    def now(self) -> Validity:
        assert self.state.record is not None
        found = run_now(self.state, self.state.record).validity
        assert found is not None
        return found


def test_a_run_without_trouble_is_valid() -> None:
    session = Session()
    session.ticks(20, runq=0.05)
    assert session.now == session.end() == Validity("valid", [])


def test_an_outage_degrades_a_run_and_its_time_is_in_no_rate() -> None:
    session = Session()
    session.ticks(20)
    session.down(12, failed=2)
    assert session.now.reasons[0] == "the server has not answered for 12 s (connection refused)"
    session.totals = dict.fromkeys(session.totals, 0.0)
    session.ticks(8)
    found = session.end()
    assert found.verdict == "degraded"
    assert found.reasons[0] == "the server did not answer for 13 s (connection refused)"
    assert found.reasons[1] == f"7.9 % of the requests failed; the commonest cause: {REFUSED}"
    record = session.state.record
    assert record is not None and record.serving is not None
    summary = run_now(session.state, record).summary
    assert (
        summary.tokens_per_s is not None
        and summary.tokens_per_s.p50 == summary.tokens_per_s.mean == pytest.approx(100.0)
    )
    assert summary.requests_per_s is not None and summary.requests_per_s.mean == pytest.approx(10.0)
    assert summary.failed_requests == 24, "a failure in an outage is a failure"
    assert record.serving.rates(0.0)["generation_tokens"] == pytest.approx(100.0, rel=0.05), (
        "the counters began at 0 again"
    )


@pytest.mark.parametrize(("seconds", "verdict"), [(9, "degraded"), (11, "invalid")])
@pytest.mark.parametrize("failed", [0, 50])
def test_the_length_of_an_outage_decides_and_not_the_number_of_tries(
    seconds: int, verdict: str, failed: int
) -> None:
    session = Session()
    session.ticks(11)  # the first tick begins the measured time
    session.down(seconds, failed=failed)
    assert session.now.verdict == verdict
    if verdict == "invalid":
        assert session.now.reasons[0] == "the server did not answer for 52 % of the time"
    session.tick()
    assert session.end().verdict == "degraded", "the server answers again"


def test_a_slow_first_answer_is_no_reason_for_doubt() -> None:
    session = Session()
    session.tick(answered=0)
    session.down(6, failed=0)
    session.tick(kind=1)
    session.ticks(10)
    assert session.end() == Validity("valid", [])


def test_a_run_that_is_stopped_while_the_server_does_not_answer_is_invalid() -> None:
    session = Session()
    session.ticks(5, answered=0, down="8 requests wait without an answer", since=session.t, kind=1)
    assert session.end("stopped").verdict == "invalid"


@pytest.mark.parametrize(
    ("answered", "failed", "verdict"), [(5, 0, None), (5, 1, None), (0, 3, "invalid")]
)
def test_a_run_that_is_stopped_before_a_request_counts(
    answered: int, failed: int, verdict: str | None
) -> None:
    session = Session()
    session.tick(answered=answered, failed=failed, kind=1)
    session.tick(answered=0)
    session.state.apply(RunClosed(session.t, "1", "stopped"))
    assert session.state.record is not None
    found = run_now(session.state, session.state.record).validity
    assert (found.verdict if found else None) == verdict


def test_a_run_that_is_stopped_before_the_load_begins_has_no_verdict() -> None:
    session = Session()
    session.state.apply(RunClosed(session.t, "1", "stopped"))
    assert (
        session.state.record is not None
        and run_now(session.state, session.state.record).validity is None
    )


def test_counters_that_begin_again_are_a_restart() -> None:
    session = Session()
    session.ticks(10)
    session.totals = dict.fromkeys(session.totals, 0.0)
    session.ticks(10)
    assert session.end() == Validity("degraded", ["the server restarted: its counters began again"])


@pytest.mark.parametrize(
    ("failed", "verdict"),
    [(0, "valid"), (2, "valid"), (3, "degraded"), (300, "degraded"), (301, "invalid")],
)
def test_the_share_of_failed_requests_decides(failed: int, verdict: str) -> None:
    session = Session()
    session.ticks(20)
    session.tick(answered=0, failed=failed)
    assert session.end().verdict == verdict


def test_answers_of_the_warm_up_are_not_denied() -> None:
    session = Session()
    session.tick(answered=5, kind=1)
    session.tick(answered=0, failed=2)
    assert session.now.reasons == [
        f"no counted request was answered; the commonest cause: {REFUSED}"
    ]


def test_most_failed_is_said_with_counts() -> None:
    session = Session()
    session.ticks(3)
    session.ticks(3, answered=0, failed=30)
    assert session.end() == Validity(
        "invalid", [f"90 of 120 requests failed; the commonest cause: {REFUSED}"]
    )


def test_a_starved_client_degrades_the_run() -> None:
    session = Session()
    session.ticks(20, runq=0.38)
    assert session.end() == Validity(
        "degraded", ["the load generator waited for a CPU 38 % of the time"]
    )
    record = session.state.record
    assert record is not None and run_now(
        session.state, record
    ).summary.client_runq_ratio == pytest.approx(0.38)


@pytest.mark.parametrize(
    ("held_back", "verdict"), [(1, "valid"), (2, "degraded"), (10, "degraded")]
)
def test_answers_in_one_piece_have_no_ttft_and_are_said(held_back: int, verdict: str) -> None:
    session = Session()
    session.ticks(5, in_one_piece=held_back)
    found = session.end()
    assert found.verdict == verdict
    assert session.state.record is not None
    run = run_now(session.state, session.state.record)
    assert run.summary.e2e_s is not None and run.summary.e2e_s.n == 50
    assert ("workload.ttft_s" in run.unavailable) == (held_back == 10)
    known = run.summary.ttft_s
    assert known is None if held_back == 10 else known is not None and known.n == 50 - 5 * held_back


def test_lost_messages_degrade_the_run() -> None:
    session = Session()
    session.dropped = 7
    session.ticks(5)
    assert session.end() == Validity("degraded", ["7 messages of the load generator were lost"])


def test_without_an_answer_a_run_is_invalid() -> None:
    session = Session()
    session.ticks(5, answered=0, failed=4, kind=1)
    assert session.end("failed", "no request is answered") == Validity(
        "invalid", [f"no request was answered; the commonest cause: {REFUSED}"]
    )
    silent = Session()
    silent.ticks(5, answered=0)
    assert silent.end() == Validity("invalid", ["no request was answered"])


def test_a_warm_up_that_never_ended_is_invalid() -> None:
    session = Session()
    session.ticks(5, answered=1, kind=1)
    assert session.end() == Validity(
        "invalid", ["the warm-up did not end: none of the 5 answered requests counts"]
    )


def test_an_archived_run_keeps_its_verdict_and_a_snapshot_has_it() -> None:
    session = Session()
    session.ticks(5, runq=0.5)
    before = session.end()
    session.state.apply(RunOpened(session.t, "2", "serve-chat", "inference.serving", KNOBS, "cpu"))
    assert run_now(session.state, session.state.records[0]).validity == before
    snapshot = make_snapshot(session.state, session.state.environment, session.t)
    assert [run.validity for run in snapshot.runs] == [before, None]


def test_gauges_of_a_server_that_does_not_answer_are_cleared() -> None:
    session = Session()
    session.ticks(10)

    def view() -> object:
        return make_view(
            session.state, now=session.t, environment=session.state.environment, device="cpu",
            probing="", recording=False, recording_to="", ended=False,
        )  # fmt: skip

    key = "server.kv_cache_usage_ratio{device=server}"
    assert view().latest[key] == 0.99 and view().down == ""  # type: ignore[attr-defined]
    session.down(3)
    shown = view()
    assert key not in shown.latest and ("connection refused") in shown.unavailable[key]  # type: ignore[attr-defined]
    assert "workload.ttft_s{device=cpu}" not in shown.latest  # type: ignore[attr-defined]
    assert (shown.down, shown.down_s) == ("connection refused", 3.0)  # type: ignore[attr-defined]
    session.tick()
    assert view().latest[key] == 0.99  # type: ignore[attr-defined]


def test_gauges_older_than_a_few_intervals_are_cleared() -> None:
    session = Session()
    session.ticks(10)
    for _ in range(30):  # requests are answered, but the page is not
        session.t += 1.0
        session.state.apply(Requests(session.t, [], 8))
    shown = make_view(
        session.state, now=session.t, environment=session.state.environment, device="cpu",
        probing="", recording=False, recording_to="", ended=False,
    )  # fmt: skip
    key = "server.kv_cache_usage_ratio{device=server}"
    assert (
        key not in shown.latest
        and shown.unavailable[key] == "the last report of the server is 30 s old"
    )


def test_the_exporter_shows_the_verdict_and_whether_the_server_answers() -> None:
    session = Session()
    session.ticks(10)

    def shown() -> dict[str, tuple[dict[str, str], float]]:
        families = ScrapeCollector(scrape(session.state, session.t), "box").collect()
        return {
            sample.name: (sample.labels, sample.value)
            for family in families
            for sample in family.samples
        }

    assert shown()["gpuconsole_model_server_up"] == ({"scenario": "serve-chat"}, 1.0)
    assert shown()["gpuconsole_run_valid"] == ({"scenario": "serve-chat", "verdict": "valid"}, 1.0)
    session.down(3)
    assert shown()["gpuconsole_model_server_up"][1] == 0.0
    assert shown()["gpuconsole_run_valid"] == (
        {"scenario": "serve-chat", "verdict": "degraded"},
        0.0,
    )


def test_no_rule_has_a_signal_of_a_server_that_is_down() -> None:
    session = Session()
    session.ticks(20)
    record = session.state.record
    assert record is not None
    summary = run_now(session.state, record).summary
    assert "server.kv_cache_full_ratio" in run_signals(record, summary, 4, None, 30.0)
    session.down(3)
    assert not any(
        name.startswith(("server.", "client."))
        for name in run_signals(record, summary, 4, None, 30.0)
    )


def test_a_run_that_is_not_valid_has_no_conclusion_in_the_report() -> None:
    session = Session()
    session.ticks(20, runq=0.38)
    session.end()
    assert session.state.record is not None
    run = run_now(session.state, session.state.record)
    run = msgspec.structs.replace(
        run, findings=[Finding("serve.sequence_cap", "clear", "Enough seats")]
    )
    _, first, *rest = run_text(run).splitlines()
    assert first == "  numbers       degraded: the load generator waited for a CPU 38 % of the time"
    text = "\n".join(rest)
    assert "diagnosis: no conclusion: the numbers are degraded" in text
    assert (
        "the client waited for a CPU 38 % of the time: the latencies, TTFT most of all, are too"
        " high and not reliable"
    ) in text
    assert "no fault found" not in text
    assert "No rule fires" not in printed(details_report(run))


def test_a_failed_run_without_a_measurement_says_that_nothing_was_measured() -> None:
    run = Run(
        "1",
        "train-gpt",
        "training.gpt",
        {},
        "cpu",
        "failed",
        "no torch",
        findings=[Finding("hw.power", "clear", "Power is enough")],
    )
    text = run_text(run)
    assert "diagnosis: no conclusion: nothing was measured" in text and "clear" not in text


def test_a_comparison_names_the_doubt_and_judges_no_invalid_run() -> None:
    session = Session()
    session.ticks(20)
    good = make_snapshot(session.state, session.state.environment, session.t).runs[0]
    bad = msgspec.structs.replace(good, validity=Validity("invalid", ["no request was answered"]))
    found = compare(in_session(good), in_session(bad))
    assert found.doubts == ["after: its numbers are invalid: no request was answered"]
    assert {one.verdict for one in found.metrics} == {"not judged"}
    assert compare(in_session(good), in_session(good)).doubts == []


def test_a_latency_of_0_reads_as_not_measured() -> None:
    assert units.latency(0.0).strip() == "n/a" and units.latency(0.02).strip() == "20.0 ms"


def test_what_two_servers_have_told_before_they_were_recognised_is_dropped() -> None:
    state, totals = SessionState(), {"requests": 100.0, "generation_tokens": 1000.0}
    state.apply(RunOpened(100.0, "1", "watched", WATCHED, {}, "cpu"))
    for second in range(1, 20):
        t, age = 100.0 + second, 50.0 if second % 2 else 1.0
        known = second > 4
        gauges = {"requests_running": 2.0} | ({"replicas": 2.0} if known else {})
        told = {} if known else {name: age * total for name, total in totals.items()}
        state.apply(ServerState(t, gauges, told))
        tokens = 0 if known else int(age * 1000)
        state.apply(Steps(t, [Step(second, t, 1.0, 1, tokens, ())], 0.0, 0.0, 0.0, 0.0))
    assert state.record is not None and state.record.serving is not None
    run = run_now(state, state.record)
    assert run.summary.tokens_per_s is None and run.summary.requests == 0
    assert run.validity is not None and run.validity.verdict == "degraded"
    assert [reason for reason in run.validity.reasons if "restarted" in reason] == []
    assert state.record.serving.restarts == 0
    assert not [key for key in state.readings.latest if "tokens_per_s" in key]
    assert not [key for key in state.readings.series if "tokens_per_s" in key]
