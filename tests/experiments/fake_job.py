"""Both sides of a live trial of a job. A subclass makes the steps."""

from __future__ import annotations

from typing import Any

from gpuconsole.model.run import Step


class FakeJob:
    method = "live ABBA"

    def __init__(self) -> None:
        self.trial_steps: list[Step] = []
        self.arm = 0

    async def switch_to(self, arm: int) -> None:
        self.trial_steps.clear()
        self.arm = arm

    def worker(self, arm: int) -> Any:
        return self
