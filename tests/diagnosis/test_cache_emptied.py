"""mem.cache_emptied: torch.cuda.empty_cache() in every step."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.rule import Missing
from gpuconsole.model.finding import CodePlace, Signal
from tests.diagnosis.cases import case, check

EMPTIED = {
    "is_gpu": 1.0,
    "step_s": 0.1,
    "mfu_ratio": 0.2,
    "sync__wait_s": 0.0,
    "cache__emptied_calls": 1.0,
    "cache__emptied_s": 0.03,
    "gpu__sm_active_ratio": 0.5,
}


def test_the_line_is_named_and_the_loss_is_at_most_the_call_and_the_idle_time() -> None:
    job = case(**EMPTIED)
    job.signals["cache.emptied_s"] = Signal(
        0.03,
        "s",
        "calls of torch.cuda.empty_cache in 3 steps; seconds of the host a step",
        CodePlace("train.py:41"),
    )
    found = check("mem.cache_emptied", job)
    assert (found.state, found.recoverable_ratio, found.confidence) == (
        "fires",
        pytest.approx(0.3),
        "medium",
    )
    assert "empty_cache() in train.py:41 runs once per step" in found.summary
    busier = check("mem.cache_emptied", case(**EMPTIED | {"gpu__sm_active_ratio": 0.7}))
    assert busier.recoverable_ratio == pytest.approx(1 - 0.7 / 0.8)


@pytest.mark.parametrize(
    "why",
    [
        {"cache__emptied_calls": 0.0, "cache__emptied_s": 0.0},
        {"gpu__sm_active_ratio": 0.8},
        {"cache__emptied_s": 0.001},
    ],
)
def test_rare_calls_and_a_busy_gpu_are_no_finding(why: dict[str, float]) -> None:
    assert check("mem.cache_emptied", case(**EMPTIED | why)).state == "clear"


def test_without_gpm_a_gpu_that_computes_is_no_finding_and_with_gpm_its_idle_time_decides() -> None:
    assert (
        check(
            "mem.cache_emptied", case(("gpu.sm_active_ratio",), **EMPTIED | {"mfu_ratio": 0.5})
        ).state
        == "clear"
    )
    assert check("mem.cache_emptied", case(**EMPTIED | {"mfu_ratio": 0.5})).state == "fires"


def test_without_the_count_nothing_is_said() -> None:
    with pytest.raises(Missing, match=r"cache\.emptied_calls"):
        check("mem.cache_emptied", case(is_gpu=1.0))
