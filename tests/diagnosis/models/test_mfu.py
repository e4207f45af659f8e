"""MFU's three methods, on figures from papers."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.models.flops import (
    flops_of,
    mfu,
    nearest_anchor,
    published_flops_per_s,
    published_tokens_per_s,
)
from gpuconsole.model.peaks import peaks_of, published_of

H100 = "NVIDIA H100 80GB HBM3"


def test_100_of_312_tflops_reads_32_percent() -> None:
    peak = peaks_of("NVIDIA A100-SXM4-80GB").bf16_flops_per_s
    assert peak == 312e12
    assert f"{mfu(100e12, peak):.0%}" == "32%"


@pytest.mark.parametrize(
    "anchor",
    [one for one in published_of(H100) if one.mfu_ratio and "llm-foundry" in one.source],
    ids=lambda one: one.model,
)
def test_a_published_mfu_follows_from_its_tokens_by_our_formula(anchor) -> None:  # type: ignore[no-untyped-def]
    assert mfu(anchor.tokens_per_s * flops_of(anchor), 989.4e12) == pytest.approx(
        anchor.mfu_ratio, rel=0.015
    )


def test_an_anchor_is_of_the_same_precision_and_the_nearest_size() -> None:
    small = nearest_anchor(published_of(H100), "bf16", 1e9)
    assert small is not None and small.model == "MPT-1B"
    assert nearest_anchor(published_of(H100), "fp32", 1e9) is None
    assert nearest_anchor((), "bf16", 1e9) is None


def test_published_speed_of_a_model_of_our_size() -> None:
    anchor = nearest_anchor(published_of("NVIDIA H200"), "bf16", 40e9)
    assert anchor is not None and anchor.tokens_per_s == 10_471
    assert published_flops_per_s(anchor, 989.4e12) == pytest.approx(0.578 * 989.4e12)
    assert published_tokens_per_s(anchor, 0.578e9, 989.4e12) == pytest.approx(989_400)
    by_formula = published_flops_per_s(anchor, None)  # without a peak: from its tokens
    assert by_formula == pytest.approx(10_471 * flops_of(anchor))
