"""host.optimizer_offloaded: an update on the CPU of a job on a GPU."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.rule import Missing
from tests.diagnosis.cases import case, check

OFFLOADED = {"is_gpu": 1.0, "optimizer_ratio": 0.4, "optimizer__on_host_ratio": 1.0}
STATES = {
    "memory__parameters_bytes": 2e9,
    "memory__gradients_bytes": 2e9,
    "memory__optimizer_bytes": 4e9,
}


def test_the_update_on_the_cpu_is_named_with_what_would_fit_on_the_gpu() -> None:
    found = check("host.optimizer_offloaded", case(**OFFLOADED, **STATES, hw__memory_bytes=80e9))
    assert (found.state, found.recoverable_ratio) == ("fires", pytest.approx(0.4))
    assert "take 8.0 GB, and the GPU has 80 GB: keep them there" in found.summary
    tight = check("host.optimizer_offloaded", case(**OFFLOADED, **STATES, hw__memory_bytes=12e9))
    assert tight.state == "fires" and "more GPUs, or smaller states" in tight.summary
    assert check("host.optimizer_offloaded", case(**OFFLOADED)).state == "fires", (
        "the sizes are not known"
    )


@pytest.mark.parametrize("why", [{"optimizer__on_host_ratio": 0.0}, {"optimizer_ratio": 0.04}])
def test_an_update_on_the_gpu_or_a_short_one_is_no_finding(why: dict[str, float]) -> None:
    assert check("host.optimizer_offloaded", case(**OFFLOADED | why)).state == "clear"


def test_without_the_place_of_the_parameters_nothing_is_said() -> None:
    with pytest.raises(Missing, match=r"optimizer\.on_host_ratio"):
        check("host.optimizer_offloaded", case(is_gpu=1.0, optimizer_ratio=0.4))
