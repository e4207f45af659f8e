"""Which changes the console tries on a user's job."""

from __future__ import annotations

import pytest

from gpuconsole.model.job import JOB
from gpuconsole.model.run import Run


@pytest.mark.parametrize(
    ("value", "tried"), [("tf32", True), ("fp32", True), ("bf16", False), ("fp16", False)]
)
def test_a_running_job_changes_its_matrix_precision_alone(value: str, tried: bool) -> None:
    job = Run("1", "train.py", JOB, {"precision": "fp32"}, "gpu:0", "running")
    assert (not job.why_not({"precision": value})) is tried
