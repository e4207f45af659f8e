"""Which GPU a job of the user's own runs on: by its uuid, by its process, by its PCI address, or
because there is one GPU only. Never the first one by default."""

from __future__ import annotations

import pytest

from gpuconsole.model.job import JobFacts
from gpuconsole.model.machine import UNKNOWN_GPU, Device, Process
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, JobKnown, Processes, RankJoined, RunOpened

CARDS = [
    Device("gpu:0", "NVIDIA L4", uuid="GPU-aa", facts={"pci": "00000000:17:00.0"}),
    Device("gpu:1", "NVIDIA L4", uuid="GPU-bb", facts={"pci": "00000000:CA:00.0"}),
]


def device_of(facts: JobFacts, cards: list[Device] = CARDS, listed: str = "") -> str:
    state = SessionState()
    state.apply(Devices(0.0, cards))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "gpu:0"))
    state.apply(RankJoined(1.0, 0, "host", 7, True, world_size=1))
    state.apply(Processes(1.0, [Process(7, listed)] if listed else []))
    state.apply(JobKnown(2.0, 0, facts))
    assert state.record is not None
    return state.record.run.device


@pytest.mark.parametrize(
    ("facts", "listed", "expected"),
    [
        (JobFacts("train.py", device="cpu"), "", "cpu"),
        (JobFacts("train.py", device="cuda:0", device_uuid="bb"), "", "gpu:1"),
        (JobFacts("train.py", device="cuda:0", device_uuid="bb"), "gpu:0", "gpu:1"),
        (JobFacts("train.py", device="cuda:0", device_uuid="another"), "gpu:1", "gpu:1"),
        (JobFacts("train.py", device="cuda:0", device_pci="0:ca:0"), "", "gpu:1"),
        (JobFacts("train.py", device="cuda:0", device_pci="0:cb:0"), "", UNKNOWN_GPU),
        (JobFacts("train.py", device="cuda:0", device_pci="nonsense"), "", UNKNOWN_GPU),
        (JobFacts("train.py", device="cuda:0"), "", UNKNOWN_GPU),
    ],
)
def test_the_gpu_of_a_job(facts: JobFacts, listed: str, expected: str) -> None:
    assert device_of(facts, listed=listed) == expected


def test_the_only_gpu_is_that_of_the_job() -> None:
    assert device_of(JobFacts("train.py", device="cuda:0"), CARDS[1:]) == "gpu:1"
