"""What our own scheduler builds on: limits, who runs, and a schedule that keeps the limits."""

from types import SimpleNamespace


class Scheduler:
    def __init__(self, vllm_config: SimpleNamespace) -> None:
        self.max_num_active_reqs = vllm_config.scheduler_config.max_num_seqs
        self.max_num_scheduled_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.running: list[int] = []
        self.waiting = 100

    def schedule(self) -> tuple[int, int]:
        """Seats taken, and the most tokens."""
        while len(self.running) < self.max_num_active_reqs and self.waiting:
            self.waiting -= 1
            self.running.append(self.waiting)
        assert len(self.running) <= self.max_num_active_reqs
        return len(self.running), self.max_num_scheduled_tokens
