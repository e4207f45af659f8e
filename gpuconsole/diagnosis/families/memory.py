"""Shared by the memory rules: the memory of a process by part, and its limit."""

from __future__ import annotations

from dataclasses import dataclass

from gpuconsole.diagnosis.rule import Case, Evidence, percent


@dataclass(frozen=True)
class ProcessMemory:
    """All in bytes, of one process. `states`: parameters, gradients and optimizer state."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    limit: float
    allocated_peak: float

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def used(self) -> float:
        """The sum of the parts, or the peak of the allocator if that is more (workspaces,
        copies)."""
        return max(self.states + self.activations, self.allocated_peak)

    def freed_ratio(self, size: float) -> float:
        """Return the share of memory that a change frees: of the limit, or of the used memory where
        that is more. On a CPU no limit is enforced."""
        return size / max(self.limit, self.used)

    @property
    def used_ratio(self) -> float:
        return self.used / self.limit


def memory_of(case: Case) -> ProcessMemory:
    """Raises Missing."""
    return ProcessMemory(
        parameters=case.value("memory.parameters_bytes"),
        gradients=case.value("memory.gradients_bytes"),
        optimizer=case.value("memory.optimizer_bytes"),
        activations=case.value("memory.activations_bytes"),
        limit=case.value("memory.limit_bytes"),
        allocated_peak=case.get("memory.allocated_peak_bytes", 0.0),
    )


def memory_evidence(case: Case, limit_share: float) -> tuple[Evidence, ...]:
    """Evidence: every part, and the used bytes with the share of the limit at which the rule
    applies."""
    memory = memory_of(case)
    used = Evidence(
        "memory used",
        memory.used,
        "B",
        limit_share * memory.limit,
        f"sum of the parts; threshold {percent(limit_share)} of the limit",
    )
    names = ("parameters", "gradients", "optimizer", "activations", "limit")
    return (used, *case.evidence(*(f"memory.{name}_bytes" for name in names)))
