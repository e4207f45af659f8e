"""A run against the runs that were kept: the sentence, the verdict, and which kept runs are those
of a run."""

from __future__ import annotations

import msgspec

from gpuconsole.experiments.baselines import comparable, compare_with
from gpuconsole.experiments.throughput import FREE, MeasuredRun
from gpuconsole.model.comparison import BaselineComparison
from gpuconsole.model.finding import Signal
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Distribution, Run, SeriesData, Summary
from gpuconsole.model.snapshot import Environment
from tests.experiments.measured import in_session

H200 = Environment(
    host="box",
    cpu="AMD EPYC 9654",
    cores=96,
    torch="2.13.0",
    driver="580.65",
    devices=[Device("gpu:0", "NVIDIA H200"), Device("cpu", "AMD EPYC 9654")],
)
TIMES = [float(second) for second in range(1, 21)]


def kept(
    rate: float = 18_240.0, date: str = "2026-11-20T10:00:00Z", environment: Environment = H200,
    device: str = "gpu:0", step_s: float = 0.4, forward: float = 0.5, runq: float | None = None,
    others: float | None = None, waiting: float | None = None, points: int = 20, **knobs: object,
) -> MeasuredRun:  # fmt: skip
    rates = [rate * (1 + 0.01 * (-1) ** i) for i in range(points)]
    series = {
        f"workload.tokens_per_s{{device={device}}}": SeriesData(
            TIMES[:points], rates, "step breakdown"
        )
    }
    if waiting is not None:
        series["host.run_queue_delay_ratio{device=cpu}"] = SeriesData(
            TIMES, [waiting] * 20, "/proc"
        )
    summary = Summary(
        tokens_per_s=Distribution(rate, rate * 0.01, points, rate),
        step_time_s=Distribution(step_s, 0.0, 100, step_s),
        phases_ratio={"forward": forward, "backward": 1 - forward},
        runq_ratio=runq,
    )
    values = {"batch_size": 8, "precision": "bf16", **knobs}
    run = Run(
        "1",
        "train-gpt",
        "training.gpt",
        values,
        device,
        "finished",
        started=date,
        duration_s=20.0,
        steady_from_s=0.0,
        summary=summary,
        series=series,
    )  # type: ignore[arg-type]
    if others is not None:
        run.signals["host.others_cpu_ratio"] = Signal(others, "ratio", "/proc")
    return in_session(run, environment)


def reason(now: MeasuredRun, *others: MeasuredRun) -> str:
    found = comparable(now, others)
    assert isinstance(found, BaselineComparison) and found.verdict is None
    return found.words


def test_a_regression_in_words() -> None:
    now = kept(15_000.0, "2026-11-28T10:00:00Z", step_s=0.45, forward=0.4)
    found = compare_with(now, [kept()])
    assert found.verdict == "slower"
    assert found.words.startswith("17.8 % [")
    assert (
        "] slower than the baseline of 2026-11-20 (18 240 tokens/s), more than the noise"
        in found.words
    )
    assert "largest change in backward: 200 ms -> 270 ms per step" in found.words
    assert found.short == "-18 % vs baseline"
    several = compare_with(now, [kept(18_240 + n, f"2026-11-{18 + n}T10:00:00Z") for n in range(3)])
    assert (
        "than the baseline of 3 runs, 2026-11-18 to 2026-11-20 (18 241 tokens/s)" in several.words
    )


def test_noise_in_words() -> None:
    found = compare_with(kept(18_000.0), [kept()], live=True)
    assert found.verdict == "undecided"
    assert found.words.startswith("-1.3 % [-")
    assert found.words.endswith(
        "against the baseline of 2026-11-20 (18 240 tokens/s), so far: undecided, the difference is"
        " within the noise; equal runs are assumed to differ by 5 %, because one run shows no"
        " spread"
    )
    few = compare_with(kept(points=2), [kept()])
    assert (few.verdict, few.change) == ("undecided", None)
    assert few.words.endswith("(18 240 tokens/s): too few steady steps for a rate: measure longer")
    other = kept()
    other.run.summary.tokens_per_s, other.run.summary.samples_per_s = (
        None,
        other.run.summary.tokens_per_s,
    )
    assert compare_with(other, [kept()]).words.endswith(
        "(18 240 tokens/s): this run counts samples/s"
    )


def test_contention_is_said_and_excuses() -> None:
    now = kept(13_000.0, others=0.55)
    found = compare_with(now, [kept(others=0.02)])
    assert found.verdict == "undecided"
    assert found.words.endswith(
        "undecided, contention: other programs used 55 % of the CPUs (2 % in the baseline)"
    )
    assert compare_with(now, [kept(others=0.45)]).verdict == "slower"
    waiting = compare_with(kept(13_000.0, waiting=0.4), [kept(waiting=0.1)])
    assert "some task waited for a CPU 40 % of the time" in waiting.words
    queue = compare_with(kept(13_000.0, runq=0.2), [kept(runq=0.0)])
    assert "the training thread waited for a CPU 20 % of the time" in queue.words


def test_time_on_the_run_queue_is_taken_off_where_both_have_it() -> None:
    now = kept(13_000.0, device="cpu", runq=0.25)
    found = compare_with(now, [kept(device="cpu", runq=0.0)])
    assert (found.clock, found.verdict) == ("contention_free", "undecided")
    assert FREE in found.words
    assert compare_with(now, [kept(device="cpu")]).clock == "wall"


def test_parts_that_differ_are_named() -> None:
    older = msgspec.structs.replace(H200, torch="2.11.0")
    other_gpu = msgspec.structs.replace(
        older,
        cpu="AMD EPYC 7742",
        cores=64,
        driver="570.1",
        devices=[Device("gpu:0", "NVIDIA A100")],
    )
    words = reason(
        kept(),
        kept(9000.0, environment=other_gpu),
        kept(date="2026-10-02T08:00:00Z", environment=older),
    )
    assert words == (
        "no baseline for torch 2.13.0; the nearest baseline is for torch 2.11.0, from"
        " 2026-10-02: 18 240 tokens/s"
    )
    assert reason(kept(batch_size=16), kept()).startswith(
        "no baseline for batch_size=16; the nearest baseline is for batch_size=8, from"
    )


def test_a_knob_that_is_new_or_varies_does_not_count_and_other_work_does_not_either() -> None:
    now, before = kept(sharding="none"), kept()
    assert comparable(now, [before]) == [before]
    minor = kept(environment=msgspec.structs.replace(H200, driver="580.99"))
    assert comparable(now, [before, minor]) == [before, minor]
    other = kept(batch_size=16)
    for side in (now, other):
        side.run.varies.append("batch_size")
    assert comparable(now, [other]) == [other]
    for name, value in (
        ("scenario", "train-vision"),
        ("command_digest", "abc"),
        ("workload", "training.vision"),
    ):
        elsewhere = kept()
        setattr(elsewhere.run, name, value)
        assert comparable(now, [elsewhere]) is None


def test_names_from_a_file_are_made_visible() -> None:
    hostile = msgspec.structs.replace(H200, devices=[Device("gpu:0", "GPU\x1b[2J\u202e")])
    assert reason(kept(), kept(environment=hostile)).isprintable()
    assert compare_with(kept(), [kept(date="\x1b[2J")]).since.isprintable()
