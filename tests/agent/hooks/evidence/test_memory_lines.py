"""The lines that hold GPU memory, from snapshots made by hand in the format that
`torch.cuda.memory._snapshot` documents (torch 2.13)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpuconsole.agent.hooks.evidence.memory_lines import (
    BEFORE,
    NO_LINE,
    AllocationHistory,
    owners_by_line,
)

MIB = 2**20


def is_program(file: str) -> bool:
    return file.startswith("/home/")


def frames(line: int, name: str = "step") -> list[dict[str, Any]]:
    """The innermost frame first: a function of torch, called by a line of the program."""
    return [
        {
            "filename": "/usr/lib/python3/site-packages/torch/nn/functional.py",
            "line": 2000,
            "name": "linear",
        },
        {"filename": "/home/me/train.py", "line": line, "name": name},
        {"filename": "/home/me/train.py", "line": 90, "name": "main"},
    ]


IN_BACKWARD: list[dict[str, Any]] = []
"""The backward pass runs on a thread of torch, without a Python stack."""


def alloc(address: int, mib: int, stack: list[dict[str, Any]]) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": mib * MIB, "stream": 0, "frames": stack}


def free(address: int, mib: int) -> list[dict[str, Any]]:
    entry = {"addr": address, "size": mib * MIB, "stream": 0, "frames": []}
    return [{"action": "free_requested", **entry}, {"action": "free_completed", **entry}]


def snapshot(
    blocks: list[tuple[int, int, list[dict[str, Any]]]], trace: list[dict[str, Any]]
) -> dict[str, Any]:
    listed = [
        {
            "address": address,
            "size": mib * MIB,
            "requested_size": mib * MIB,
            "state": "active_allocated",
            "frames": stack,
        }
        for address, mib, stack in blocks
    ]
    idle = {
        "address": 900,
        "size": 64 * MIB,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }
    return {
        "segments": [{"device": 0, "address": 1, "blocks": [*listed, idle]}],
        "device_traces": [trace],
    }


PARAMETERS = (1, 100, frames(10, "main"))
ACTIVATION, GRADIENT = frames(42, "forward"), IN_BACKWARD
STEP = [
    alloc(2, 30, ACTIVATION),
    alloc(3, 40, ACTIVATION),
    alloc(4, 20, GRADIENT),
    *free(3, 40),
    *free(2, 30),
]
"""After the step the parameters and the gradient are left; the largest allocation is that after the
first entry of the backward pass."""


def test_the_owners_at_the_largest_allocation_are_found_after_it_has_been_freed() -> None:
    lines, total = owners_by_line(
        snapshot([PARAMETERS, (4, 20, GRADIENT)], STEP), 0, False, is_program
    )
    assert total == 190 * MIB
    assert [(line.line, line.function, line.bytes / MIB, line.blocks) for line in lines] == [
        (10, "main", 100, 1),
        (42, "forward", 70, 2),
        (0, NO_LINE, 20, 1),
    ]
    assert lines[0].file == "/home/me/train.py"


def test_the_owners_at_a_failed_allocation_are_those_before_the_traceback_freed_tensors() -> None:
    trace = [
        alloc(2, 30, ACTIVATION),
        {"action": "oom", "size": 500 * MIB, "device_free": 0, "frames": ACTIVATION},
        *free(2, 30),
    ]
    lines, total = owners_by_line(snapshot([PARAMETERS], trace), 0, True, is_program)
    assert total == 130 * MIB and [line.line for line in lines] == [10, 42]


def test_an_address_that_is_used_again_gets_the_stack_of_its_time() -> None:
    trace = [
        alloc(2, 30, frames(50)),
        *free(2, 30),
        alloc(2, 35, frames(51)),
        *free(2, 35),
        alloc(2, 5, frames(52)),
    ]
    lines, total = owners_by_line(snapshot([(2, 5, frames(52))], trace), 0, False, is_program)
    assert total == 35 * MIB and [line.line for line in lines] == [51]


def test_a_block_from_before_the_history_says_so() -> None:
    lines, total = owners_by_line(snapshot([], free(7, 60)), 0, False, is_program)
    assert total == 60 * MIB and [line.function for line in lines] == [BEFORE]


def test_ten_lines_are_listed_and_all_are_counted() -> None:
    blocks = [(100 + n, n + 1, frames(n)) for n in range(25)]
    lines, total = owners_by_line(snapshot(blocks, []), 0, False, is_program)
    assert [line.line for line in lines] == list(range(24, 14, -1))
    assert total == sum(range(1, 26)) * MIB


def test_an_agent_that_is_off_leaves_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = list[object]()
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda enabled, **_: recorded.append(enabled)
    )
    history, waiting = AllocationHistory(), list(torch.cuda._queued_calls)
    history.wanted = True
    history.begin_with_cuda(torch.cuda)
    assert len(torch.cuda._queued_calls) == len(waiting) + 1
    history.begin()
    history.stop()
    history.begin()
    assert torch.cuda._queued_calls == waiting
    assert recorded == ["all", None]


def test_another_gpu_has_its_own_blocks() -> None:
    assert owners_by_line(snapshot([PARAMETERS], STEP), 1, False, is_program) == ([], 0.0)
