"""What the benchmark with a real neighbour counts."""

from benchmarks.trial_neighbour import figures, line
from gpuconsole.model.experiments import Speedup, Trial

UNDECIDED = Trial(
    "1",
    "1",
    {},
    "done",
    Speedup(1.01, 0.9, 1.1),
    verdict="undecided",
    blocks=20,
    elapsed_s=20.0,
)
FALSE_WIN = Trial(
    "2",
    "1",
    {},
    "done",
    Speedup(1.2, 1.1, 1.3),
    verdict="win",
    blocks=8,
    elapsed_s=10.0,
)
FAILED = Trial("3", "1", {}, "failed", verdict="undecided", error="the job ended")


def test_verdicts_and_coverage_are_counted() -> None:
    counts = figures([UNDECIDED, FALSE_WIN, FAILED])
    assert (
        counts["trials"],
        counts["failed"],
        counts["win"],
        counts["undecided"],
        counts["covered"],
    ) == (3, 1, 1, 1, 1)
    assert counts["elapsed_mean_s"] == 15.0


def test_a_series_without_a_finished_trial_has_no_means() -> None:
    counts = figures([FAILED])
    assert counts["estimate_mean"] is None and counts["win"] == 0


def test_a_line_says_what_was_measured() -> None:
    assert line(UNDECIDED) == "undecided 1.010x [0.900, 1.100], 20 blocks, 20.0 s"
    assert line(FAILED).startswith("undecided the job ended")
