"""Whether a recording has all expected samples, and what the program reported about missing
ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Rounds:
    """Samples of one GPU: number, time of the first, time of the last."""

    received: int = 0
    first_t: float = 0.0
    last_t: float = 0.0

    def expected(self, interval_s: float) -> int:
        return round((self.last_t - self.first_t) / interval_s) + 1


@dataclass
class Account:
    """`told_missed`: rounds that the NVML source reported as skipped. `notes`: other notes of the
    program to its user."""

    gpus: dict[str, Rounds] = field(default_factory=dict)
    told_missed: int = 0
    slowest_period_s: float = 0.0
    notes: list[str] = field(default_factory=list)


def read(recording: Path) -> Account:
    account = Account()
    with recording.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                _add(account, json.loads(line))
    return account


def _add(account: Account, event: dict[str, Any]) -> None:
    match event["event"]:
        case "sample" if event["device"].startswith("gpu:") and "/" not in event["device"]:
            rounds = account.gpus.setdefault(event["device"], Rounds(first_t=event["t"]))
            rounds.received += 1
            rounds.last_t = event["t"]
        case "sourcestate" if event["source"] == "nvml":
            account.told_missed = max(account.told_missed, event.get("missed", 0))
            account.slowest_period_s = max(account.slowest_period_s, event["period_s"])
        case "note":
            account.notes.append(event["text"])
