"""The gate: its statistics by simulation, and what it compares and refuses."""

from __future__ import annotations

import datetime
import math
import random
from collections import Counter

import msgspec
import pytest

from benchmarks.gate.simulated import ROWS
from benchmarks.gate.simulated import outcomes as simulated
from gpuconsole.experiments.gate import GateError, decide, judge, runs_needed, work_key
from gpuconsole.experiments.runs import RunRate, batches, interleaved, ratio_of
from gpuconsole.experiments.throughput import MeasuredRun, throughput
from gpuconsole.model.comparison import Gate
from gpuconsole.model.experiments import Trial
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Distribution, Run, Validity
from gpuconsole.model.snapshot import Environment
from tests.experiments.measured import in_session
from tests.experiments.test_comparison import HERE, run

DAY = 86_400.0


def rates(
    order: str,
    chance: random.Random,
    spread: float,
    ratio: float = 1.0,
    correlated: float = 0.0,
    apart: float = 30.0,
    between: float = 0.0,
) -> tuple[list[RunRate], list[RunRate]]:
    """Runs of 20 s in the order of the labels A and B, `apart` seconds apart; `/` is a day.
    `spread`: between runs, in an AR(1) process; `between`: between days."""
    sides: dict[str, list[RunRate]] = {"A": [], "B": []}
    t, level, day = 1e9, chance.gauss(0, spread), chance.gauss(0, between)
    for label in order:
        if label == "/":
            t, day = t + DAY, chance.gauss(0, between)
            continue
        level = correlated * level + math.sqrt(1 - correlated**2) * chance.gauss(0, spread)
        sides[label].append(
            RunRate(level + day + math.log(ratio) * (label == "B"), spread / 3, "box", t, t + 20)
        )
        t += apart
    return sides["A"], sides["B"]


def outcomes(order: str, ratio: float = 1.0, times: int = 400, **noise: float) -> Counter[str]:
    return Counter(
        decide(ratio_of(*rates(order, random.Random(seed), ratio=ratio, **noise)), 0.97)
        for seed in range(times)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "order", ["AB", "ABBA", "ABABAB", "ABBAABBAAB", "AAABBB", "AA/AA/AA/BB", "A/A/A/A/A/A/BBBB"]
)
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("correlated", [0.0, 0.9])
def test_the_same_again_is_called_a_regression_at_most_once_in_20(
    order: str, spread: float, correlated: float
) -> None:
    assert outcomes(order, spread=spread, correlated=correlated)["regression"] <= 20


def test_a_machine_that_differs_from_day_to_day_is_no_regression_where_the_base_shows_it() -> None:
    assert outcomes("AA/AA/AA/AA/AA/BB", spread=0.005, between=0.04)["regression"] <= 20


@pytest.mark.parametrize("order", ["ABBAABBAAB", "ABABAB", "ABBA", "ABA"])
@pytest.mark.parametrize("spread", [0.01, 0.1])
def test_a_change_at_the_limit_is_called_a_regression_at_most_once_in_20(
    order: str, spread: float
) -> None:
    assert outcomes(order, 0.97, spread=spread)["regression"] <= 20


@pytest.mark.parametrize(
    ("order", "spread", "least"),
    [("ABABAB", 0.005, 0.8), ("ABBAABBAAB", 0.01, 0.75), ("ABBA" * 4, 0.01, 0.9)],
)
def test_five_percent_less_is_found_and_the_same_again_passes(
    order: str, spread: float, least: float
) -> None:
    assert outcomes(order, 0.95, spread=spread)["regression"] >= 400 * least
    assert outcomes(order, 1.0, spread=spread)["no regression"] >= 400 * least
    assert outcomes(order, 0.95, spread=spread)["no regression"] == 0


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row[0].replace('/', ' ')} {row[1]:g} {row[2]:g}"
)
def test_unequally_noisy_sides_are_no_regression_either(row: tuple[str, float, float]) -> None:
    order, *deviations = row
    assert simulated(order, (deviations[0], deviations[1]), 0.97, 400)["regression"] <= 18


def test_one_run_of_each_side_decides_only_what_is_plain() -> None:
    """A side with one run is assumed to differ by 5 %: a loss of 5 % is open, one of a fifth is
    not."""
    assert outcomes("AB", 0.95, spread=0.005)["undecided"] == 400
    assert outcomes("AB", 0.8, spread=0.005)["regression"] == 400


def test_more_runs_on_one_other_day_do_not_make_the_interval_narrow() -> None:
    few, many = (
        ratio_of(*rates(order, random.Random(1), 0.005))
        for order in ("AA/BB", "A" * 10 + "/" + "B" * 10)
    )
    assert not many.in_turn and many.occasions == (1, 1) and many.assumed
    assert many.high / many.low > 1.15 and many.high / many.low == pytest.approx(
        few.high / few.low, rel=0.02
    )


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("AB", True),
        ("ABBA", True),
        ("ABABAB", True),
        ("AABB", False),
        ("AAABBB", False),
        ("ABBB", False),
        ("AB/BA", False),
    ],
)
def test_what_is_measured_in_turn(order: str, expected: bool) -> None:
    assert interleaved(*rates(order, random.Random(0), 0.01)) is expected


def test_occasions_end_where_the_host_changes_or_time_passes() -> None:
    base, _ = rates("AA/AAA", random.Random(0), 0.01)
    assert [len(unit) for unit in batches(base)] == [2, 3]
    assert [
        len(unit) for unit in batches([base[0], base[1]._replace(host="other"), *base[2:]])
    ] == [1, 3, 1]
    assert not interleaved(base[:1], [base[1]._replace(host="other")])
    assert not interleaved([RunRate(0.0)], [RunRate(0.0)])  # without a time, nobody knows


def test_the_needed_runs_decide_at_that_noise() -> None:
    needed = runs_needed(0.03, 0.94, 0.97)
    assert needed is not None and 10 < needed < 60
    assert 0.74 <= outcomes("AB" * needed, 0.94, spread=0.03)["regression"] / 400 <= 0.86
    assert runs_needed(0.001, 0.9, 0.97) == 3
    # how far one run of each side is from the limit says little
    assert runs_needed(0.02, 0.97, 0.97, 1.0) == 8
    assert runs_needed(3.0, 0.97, 0.97) is None


# --- runs -----------------------------------------------------------------------------------------


def side(
    rate: float,
    place: int,
    environment: Environment = HERE,
    delay: float | None = None,
    **knobs: int,
) -> MeasuredRun:
    """A run that began 40 s after the run of the place before it."""
    made = run(rate, seed=place, **knobs)
    made.started = datetime.datetime.fromtimestamp(1.7e9 + 40 * place, datetime.UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    made.summary.runq_ratio = delay
    return in_session(made, environment, f"{place}.json")


def sides(
    base: float, new: float, runs: int = 4, **more: object
) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    """In turn; runs of a side differ by 0.5 %."""
    made: tuple[list[MeasuredRun], list[MeasuredRun]] = ([], [])
    for place in range(2 * runs):
        label = (0, 1, 1, 0)[place % 4]
        made[label].append(side((base, new)[label] * (1 + 0.005 * (place % 3 - 1)), place, **more))  # type: ignore[arg-type]
    return made


def test_equal_runs_pass_and_slower_runs_fail() -> None:
    same = judge(*sides(1000, 1000), 0.97)
    assert (
        same.verdict == "no regression"
        and same.needed == 0
        and same.ratio.in_turn
        and not same.ratio.assumed
    )
    less = judge(*sides(1000, 950), 0.97)
    assert less.verdict == "regression" and less.ratio.estimate == pytest.approx(0.95, abs=0.005)
    rows = {figure.name: figure for figure in less.figures}
    assert (
        rows["throughput"].relative == pytest.approx(-0.05, abs=0.005)
        and rows["memory peak"].new == 2e9
    )


def test_an_undecided_answer_says_how_many_runs_are_needed() -> None:
    base, new = sides(1000, 980, runs=1)
    gate = judge(base, new, 0.97)
    assert (
        gate.verdict == "undecided"
        and gate.needed >= 3
        and f"about {gate.needed} runs of each side, measured in turn" in gate.why
    )
    kept = [side(1000, place - 10_000) for place in range(3)]
    gate = judge(kept, new, 0.97)
    assert (
        gate.verdict == "undecided"
        and "BASE and NEW were measured apart (1 occasion and 1 occasion)" in gate.why
    )


@pytest.mark.parametrize(
    ("delays", "others", "verdict", "estimate"),
    [
        # a neighbour: its load explains the wait
        ((0.02, 0.40), (0.02, 0.45), "no regression", 1.0),
        ((0.02, 0.20), (0.02, 0.18), "no regression", 1.0),
        ((0.45, 0.45), (0.45, 0.45), "no regression", 1.0),
        # it takes more than its share of the CPUs, from the core of the training thread
        ((0.02, 0.30), (0.02, 0.13), "undecided", None),
        # the job's own threads
        ((0.02, 0.40), (0.02, 0.02), "regression", 0.61),
        ((0.02, 0.12), (0.02, 0.02), "regression", 0.90),
        # perhaps its own threads: other programs are as busy as before
        ((0.02, 0.40), (0.45, 0.45), "undecided", 1.0),
        ((0.02, 0.12), (0.30, 0.30), "undecided", 1.0),
        ((0.02, 0.40), None, "undecided", 1.0),
    ],
)
def test_only_the_wait_for_other_programs_is_taken_off(
    delays: tuple[float, float],
    others: tuple[float, float] | None,
    verdict: str,
    estimate: float | None,
) -> None:
    made = sides(1000 * (1 - delays[0]), 1000 * (1 - delays[1]))
    for place, runs in enumerate(made):
        for each in runs:
            each.run.summary.runq_ratio = delays[place]
        if others is not None:
            loaded(runs, others[place])
    gate, answer = judge(*made, 0.97), throughput(*made)
    assert gate.clock == "contention_free" and gate.verdict == verdict
    assert estimate is None or gate.ratio.estimate == pytest.approx(estimate, abs=0.03)
    assert answer is not None and answer.ratio == gate.ratio
    assert answer.verdict == ("slower" if verdict == "regression" else "undecided")
    wall = (1 - delays[1]) / (1 - delays[0])
    assert answer.wall is not None and answer.wall.ratio.estimate == pytest.approx(wall, rel=0.01)
    rows = [figure for figure in gate.figures if figure.name.startswith("throughput")]
    assert [1 + (row.relative or 0.0) for row in rows] == pytest.approx(
        [wall, gate.ratio.estimate], rel=0.01
    )
    if verdict == "undecided" and estimate:  # the figures of both clocks
        assert f"{wall:.2f}" in gate.why and f"{gate.ratio.estimate:.3f}" in gate.why


def test_the_wall_clock_counts_where_a_run_does_not_know_its_wait() -> None:
    base, new = sides(1000, 800, delay=0.0)
    new[0].run.summary.runq_ratio = None
    assert judge(base, new, 0.97).clock == "wall"


def loaded(runs: list[MeasuredRun], others: float) -> None:
    for each in runs:
        each.run.signals["host.others_cpu_ratio"] = Signal(others, "ratio", "/proc")


def test_a_loss_under_more_load_of_others_is_no_proof() -> None:
    base, new = sides(1000, 900)
    loaded(base, 0.1)
    loaded(new, 0.5)
    gate = judge(base, new, 0.97)
    assert gate.verdict == "undecided" and gate.why == (
        "contention: other programs used 50 % of the CPUs (10 % in the baseline): this alone"
        " may be the difference"
    )
    # the base was disturbed, so that the new runs only look good
    assert judge(new, base, 0.97).verdict == "undecided"
    loaded(new, 0.2)
    assert judge(base, new, 0.97).verdict == "regression"


def refused(base: list[MeasuredRun], new: list[MeasuredRun]) -> str:
    with pytest.raises(GateError) as error:
        judge(base, new, 0.97)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_other_hardware_work_or_commands_are_refused_in_one_line() -> None:
    base, _ = sides(1000, 1000)
    other = msgspec.structs.replace(HERE, cpu="another CPU", devices=[Device("cpu", "another CPU")])
    assert refused(base, [side(1000, 50, other)]) == (
        "0.json and 50.json are not comparable: device cpu (a CPU) -> cpu (another CPU); cpu a CPU"
        " -> another CPU"
    )
    assert "cores 2 -> 4" in refused(base, [side(1000, 50, msgspec.structs.replace(HERE, cores=4))])
    new = side(1000, 50)
    new.run.scenario = "tiny-batch"
    assert "scenario train-gpt -> tiny-batch" in refused(base, [new])
    new = side(1000, 50)
    new.run.command_digest = "abc"
    assert "command none -> abc" in refused(base, [new])


def test_runs_without_a_rate_of_one_setting_are_refused() -> None:
    base, new = sides(1000, 1000)
    assert refused(base, [base[0]]) == "0.json and 0.json are the same run: a run counts once"
    new[0].run.state, new[0].run.error = "failed", "out of memory"
    assert refused(base, new) == "1.json: the run failed: out of memory"
    new[0].run.state, new[0].run.steady_from_s = "finished", None
    assert "too few steady steps" in refused(base, new)
    new[0].run.steady_from_s = 5.5
    rate, new[0].run.summary.tokens_per_s, new[0].run.summary.step_time_s = (
        new[0].run.summary.tokens_per_s,
        None,
        Distribution(0.1, 0, 9, 0.1),
    )
    assert "the samples of a step are not known" in refused(base, new)
    new[0].run.summary.tokens_per_s = rate
    new[0].run.validity = Validity("invalid", ["no request was answered"])
    assert "no request was answered" in refused(base, new)
    new[0].run.validity = None
    new[0].session.trials.append(Trial("t", "1", {}, "live ABBA"))
    assert "settings were tried in this run" in refused(base, new)


def test_degraded_numbers_have_no_verdict() -> None:
    base, new = sides(1000, 900)
    new[1].run.validity = Validity("degraded", ["the client lacked CPU time"])
    gate = judge(base, new, 0.97)
    assert gate.verdict == "undecided" and "the client lacked CPU time" in gate.why


def test_another_version_is_named_and_compared() -> None:
    base, new = sides(1000, 900)
    newer = msgspec.structs.replace(HERE, torch="2.14.0")
    gate = judge(
        base,
        [
            each._replace(session=msgspec.structs.replace(each.session, environment=newer))
            for each in new
        ],
        0.97,
    )
    assert gate.verdict == "regression" and [
        (changed.name, changed.after) for changed in gate.differences
    ] == [("torch", "2.14.0")]


def test_findings_that_most_runs_of_one_side_have_are_new_or_gone() -> None:
    base, new = sides(1000, 1000)
    for runs, rule, count in (
        (base, "gone", 4),
        (new, "new", 3),
        (base, "both", 4),
        (new, "both", 4),
        (new, "once", 1),
    ):
        for each in runs[:count]:
            each.run.findings = [*each.run.findings, Finding(rule, "fires", f"title of {rule}")]
    gate = judge(base, new, 0.97)
    assert [(finding.rule, finding.base, finding.new) for finding in gate.findings] == [
        ("new", 0, 3),
        ("gone", 4, 0),
    ]


def test_the_key_names_work_and_hardware_and_no_version() -> None:
    made: Run = side(1000, 0).run
    key = work_key(made, HERE)
    assert key.startswith("train-gpt-a-CPU-") and key.replace("-", "").isalnum()
    assert key == work_key(
        side(900, 5, batch_size=3).run, msgspec.structs.replace(HERE, torch="3", host="other")
    )
    assert key != work_key(made, msgspec.structs.replace(HERE, cores=8))
    made.command_digest = "abc"
    assert key != work_key(made, HERE)


def test_a_gate_is_json() -> None:
    gate = judge(*sides(1000, 1000), 0.97)
    assert msgspec.json.decode(msgspec.json.encode(gate), type=Gate) == gate
