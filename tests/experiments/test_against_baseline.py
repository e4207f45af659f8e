from gpuconsole.experiments.baselines import compare, nearest_baseline, unlike
from gpuconsole.model.baseline import Baseline, BaselineKey, BaselineRun
from gpuconsole.model.knobs.knob import Knobs

KEY = BaselineKey("train-gpt", {}, "NVIDIA H200", "AMD EPYC 9654", 96, "2.13.0", "580")
KNOBS: Knobs = {"batch_size": 8, "precision": "bf16"}


def kept(rate: float = 18_240.0, date: str = "2026-11-20T10:00:00Z", **more: object) -> BaselineRun:
    rates = tuple(rate * (1 + 0.01 * (-1) ** i) for i in range(20))
    more = {"step_time_s": 0.4, "phases_ratio": {"forward": 0.5, "backward": 0.5}, **more}
    return BaselineRun(date, "0.1.0", rates, **more)  # type: ignore[arg-type]


def baseline(*runs: BaselineRun, key: BaselineKey = KEY, knobs: Knobs = KNOBS) -> Baseline:
    return Baseline(key=key, knobs=knobs, unit="tokens/s", runs=runs or (kept(),))


def test_a_regression_in_words() -> None:
    now = kept(16_000.0, step_time_s=0.45, phases_ratio={"forward": 0.4, "backward": 0.6})
    found = compare(now, baseline())
    assert found.verdict == "slower"
    assert found.words.startswith("12.3 % [")
    assert "] slower than the baseline of 2026-11-20 (18 240 tokens/s), more than the noise" in found.words
    assert "largest change in backward: 200 ms -> 270 ms per step" in found.words
    assert "runs are assumed to differ by 2 % until 5 runs of different times are kept" in found.words
    assert found.short == "-12 % vs baseline"
    several = compare(now, baseline(*(kept(18_240 + n, f"2026-11-{18 + n}T10:00:00Z") for n in range(3))))
    assert "than the baseline of 3 runs, 2026-11-18 to 2026-11-20 (18 241 tokens/s)" in several.words
    many = compare(now, baseline(*(kept(18_240 + n, f"2026-11-{10 + n}T10:00:00Z") for n in range(5))))
    assert "until" not in many.words and "until 5 runs of different times" in several.words


def test_noise_in_words() -> None:
    found = compare(kept(18_000.0), baseline(), live=True)
    assert found.verdict == "undecided"
    assert found.words.startswith("-1.3 % [-")
    assert found.words.endswith(
        "against the baseline of 2026-11-20 (18 240 tokens/s), so far: undecided, the difference is within the noise"
    )
    same = compare(kept(18_000.0), baseline(*(kept(date=f"2026-11-{10 + n}T10:00:00Z") for n in range(8))))
    assert same.words.startswith("the same as the baseline of 8 runs, 2026-11-10 to 2026-11-17 (18 240 tokens/s), within 5 %: -1.3 % [")
    few = compare(BaselineRun("2026-11-21", "0.1.0", (1.0, 2.0)), baseline())
    assert (few.verdict, few.change) == ("undecided", None)
    assert few.words.endswith("both runs need 4 blocks of steady steps")


def test_contention_is_said_and_excuses() -> None:
    now = kept(16_000.0, others_ratio=0.55)
    found = compare(now, baseline(kept(others_ratio=0.02)))
    assert found.verdict == "undecided"
    assert found.words.endswith("undecided, contention: other programs used 55 % of the CPUs (2 % in the baseline)")
    assert compare(now, baseline(kept(others_ratio=0.45))).verdict == "slower"
    waiting = compare(kept(16_000.0, waiting_ratio=0.4), baseline(kept(waiting_ratio=0.1)))
    assert "some task waited for a CPU 40 % of the time" in waiting.words
    queue = compare(kept(16_000.0, run_queue_ratio=0.2), baseline(kept(run_queue_ratio=0.0)))
    assert "the training thread waited for a CPU 20 % of the time" in queue.words


def test_time_on_the_run_queue_is_taken_off_where_both_have_it() -> None:
    now = kept(16_000.0, on_cpu=True, run_queue_ratio=0.12)
    found = compare(now, baseline(kept(on_cpu=True, run_queue_ratio=0.0)))
    assert (found.clock, found.verdict) == ("contention_free", "undecided")
    assert "without run-queue delay" in found.words
    assert compare(now, baseline()).clock == "wall"


def test_parts_that_differ_are_named() -> None:
    older = BaselineKey("train-gpt", {}, "NVIDIA H200", "AMD EPYC 9654", 96, "2.11.0", "580")
    other_gpu = BaselineKey("train-gpt", {}, "NVIDIA A100", "AMD EPYC 7742", 64, "2.11.0", "570")
    known = [baseline(kept(9000.0), key=other_gpu), baseline(kept(date="2026-10-02T08:00:00Z"), key=older)]
    found = nearest_baseline(KEY, KNOBS, known)
    assert found is not None
    comparison = unlike(KEY, *found)
    assert comparison.words == "no baseline for torch 2.13.0; the nearest baseline is for torch 2.11.0, from 2026-10-02: 18 240 tokens/s"
    assert comparison.verdict is None
    changed = nearest_baseline(KEY, {**KNOBS, "batch_size": 16}, [baseline()])
    assert changed is not None
    assert unlike(KEY, *changed).words.startswith("no baseline for batch_size=16; the nearest baseline is for batch_size=8, from")


def test_a_knob_that_is_new_since_does_not_count_and_other_scenarios_do_not_either() -> None:
    found = nearest_baseline(KEY, {**KNOBS, "sharding": "none"}, [baseline()])
    assert found is not None
    assert found[1] == []
    elsewhere = BaselineKey("train-vision", {}, "NVIDIA H200", "AMD EPYC 9654", 96, "2.13.0", "580")
    assert nearest_baseline(elsewhere, KNOBS, [baseline()]) is None


def test_names_from_a_file_are_made_visible() -> None:
    hostile = BaselineKey("train-gpt", {}, "GPU\x1b[2J\u202e", "AMD EPYC 9654", 96, "2.13.0", "580")
    found = nearest_baseline(KEY, KNOBS, [baseline(key=hostile)])
    assert found is not None
    assert unlike(KEY, *found).words.isprintable()
