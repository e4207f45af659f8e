"""`gpuconsole run -- torchrun --nproc-per-node=2 ...`: two processes over gloo whose exchange of
gradients is the fault, or is none.

No probe runs. The program stamps its waits by hand (programs/exchanging.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.agent.listener import Listener
from tests.agent.test_own_job import Ran, plain, watched
from tests.matrix import matrix

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("exchanging")]

PROGRAM = Path(__file__).parent / "programs" / "exchanging.py"
POINTS = 0.06
"""On two cores that other programs use too: most figures agree within 0.03."""
SKIPPED = 10
"""Steps at the start that do not count: the agent looks at the program there, and DDP builds its
buckets."""
JOB_S = 8


class Job(NamedTuple):
    """A finished job. `findings`: the conclusions by rule, the first one first. `losses`: the first
    ones of each process."""

    ran: Ran
    findings: dict[str, dict[str, Any]]
    losses: list[list[str]]

    @property
    def faults(self) -> list[str]:
        """The rules that fire, without those that tell of other programs on this machine."""
        firing = [
            rule
            for rule, finding in self.findings.items()
            if finding["state"] == "fires" and not finding.get("note")
        ]
        return [rule for rule in firing if not rule.startswith("host.")]

    def share(self, rank: int, phase: str) -> float:
        return float(self.ran.run["ranks"][rank]["phases_ratio"].get(phase, 0.0))


def torchrun(kind: str, seconds: float = JOB_S) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        str(PROGRAM),
        kind,
        str(seconds),
    )


def by_hand(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What each process has written."""
    return [json.loads((folder / f"{kind}.rank{rank}.json").read_text()) for rank in (0, 1)]


def job(folder: Path, kind: str) -> Job:
    ran = watched(folder, *torchrun(kind))
    assert ran.code == 0, ran.err
    return Job(
        ran,
        {finding["rule"]: finding for finding in ran.run["findings"]},
        [account["losses"] for account in by_hand(folder, kind)],
    )


@pytest.mark.rates
@pytest.mark.parametrize(
    "kind", matrix(["exposed", "accumulated", "computing", "late_data"], in_ci=("accumulated",))
)
def test_the_wait_for_exchanges_agrees_with_stamps_by_hand(kind: str, tmp_path: Path) -> None:
    wrong = differences(kind, tmp_path / "first")
    if wrong:  # another test may have taken the cores: the job runs again
        wrong = differences(kind, tmp_path / "again")
    assert wrong == {}


def differences(kind: str, folder: Path) -> dict[str, float]:
    """The agent's shares of `comm` and `backward` less those of the stamps, for each process, where
    they differ by more than POINTS."""
    folder.mkdir()
    listener = Listener(folder)
    done = listener.run(*torchrun(kind), cwd=folder)
    assert done.returncode == 0, done.stderr
    processes = {process.first.rank: process for process in listener.watched if process.steps}
    wrong = {}
    for rank, account in enumerate(by_hand(folder, kind)):
        stamps = account["steps"][SKIPPED:]
        total = sum(stamp["step"] for stamp in stamps)
        exposed, backward = (
            sum(stamp[name] for stamp in stamps) / total for name in ("exposed", "backward")
        )
        shares = processes[rank].shares(SKIPPED)
        wrong[f"comm {rank}"], wrong[f"backward {rank}"] = (
            shares["comm"] - exposed,
            shares["backward"] - (backward - exposed),
        )
    return {name: round(by, 3) for name, by in wrong.items() if abs(by) > POINTS}


def test_exposed_communication_is_named_and_shown_as_a_phase_of_its_own(tmp_path: Path) -> None:
    found = job(tmp_path, "exposed")
    assert found.faults[0] == "comm.exposed"
    assert min(found.share(rank, "comm") for rank in (0, 1)) > 0.2
    assert "DistributedDataParallel's own timer" in found.ran.run["signals"]["comm_ratio"]["source"]
    assert "no fault found" not in found.ran.err
    # the losses of the first steps are compared
    alone = plain(tmp_path, *torchrun("exposed", seconds=3))
    assert alone.code == 0
    losses = [account["losses"] for account in by_hand(tmp_path, "exposed")]
    for ours, others in zip(found.losses, losses, strict=True):
        both = min(len(ours), len(others))
        assert both >= 20 and ours[:both] == others[:both]


@pytest.mark.rates
def test_a_job_that_computes_is_not_accused(tmp_path: Path) -> None:
    found = job(tmp_path, "computing")
    assert (
        found.findings["comm.exposed"]["state"]
        == found.findings["comm.straggler"]["state"]
        == "clear"
    )
    assert found.faults == []


@pytest.mark.matrix
def test_a_slow_process_is_named(tmp_path: Path) -> None:
    found = job(tmp_path, "straggler")
    assert found.faults[0] == "comm.straggler"
    assert (
        "rank 1" in found.findings["comm.straggler"]["summary"]
        and "backward" in found.findings["comm.straggler"]["summary"]
    )
    assert found.share(0, "comm") > 2 * found.share(1, "comm"), "the other process waits"


def test_a_process_whose_data_comes_late_is_named(tmp_path: Path) -> None:
    found = job(tmp_path, "late_data")
    assert found.faults[0] == "comm.straggler"
    assert (
        "rank 1" in found.findings["comm.straggler"]["summary"]
        and "data" in found.findings["comm.straggler"]["summary"]
    )


SYNCED = ("synced", "comm.accum_without_no_sync", {"sync_each_batch": False})
REMEDIES = (
    SYNCED,
    ("crumbs", "comm.small_buckets", {"bucket_cap_mb": 25.0}),
    ("by_hand", "comm.exposed", {"gradient_accumulation_steps": 4}),
)


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "rule", "change"), REMEDIES)
def test_the_cause_and_its_remedy(
    kind: str, rule: str, change: dict[str, Any], tmp_path: Path
) -> None:
    found = job(tmp_path, kind)
    assert found.faults[0] == rule
    assert found.findings[rule]["suggestions"][0]["changes"] == change


@pytest.mark.rates
@pytest.mark.parametrize("kind", matrix(["each", "20"], in_ci=("each",)))
def test_metrics_that_are_reduced_in_each_step_are_named_with_their_line(
    kind: str, tmp_path: Path
) -> None:
    program = PROGRAM.with_name("reduced.py")
    ran = watched(
        tmp_path,
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        str(program),
        kind,
        str(JOB_S),
    )
    assert ran.code == 0, ran.err
    finding = next(
        finding for finding in ran.run["findings"] if finding["rule"] == "comm.outside_backward"
    )
    assert finding["state"] == ("fires" if kind == "each" else "clear"), finding
    if kind == "each":
        assert (
            "11 collectives" in finding["summary"]
            and "log_all, called by reduced.py:" in finding["summary"]
        )
        assert not finding.get("suggestions")
        assert "rank" not in next(
            other for other in ran.run["findings"] if other["rule"] == "comm.straggler"
        ).get("summary", "")
