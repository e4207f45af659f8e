"""What is seen of a dataset: its state, and what its processes cannot share."""

from __future__ import annotations

import io
import logging
import random
import socket
import sqlite3
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpuconsole.agent.hooks.changes.state import moved, positions, state_of


class Odd:
    """Raises where it is touched."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("touched")

    def __len__(self) -> int:
        raise RuntimeError("touched")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("touched")


def dataset(**attributes: Any) -> Any:
    return SimpleNamespace(paths=[f"{number}.png" for number in range(50)], inner=SimpleNamespace(**attributes), transform=lambda row: row)


@pytest.mark.parametrize(
    "values",
    [
        (1, 2),
        (1, 1.0),
        ("easy", "hard"),
        ([1, 2], [1, 3]),
        ({"a": 1}, {"a": 2}),
        (torch.zeros(3), torch.ones(3)),
        (np.zeros(3), np.ones(3)),
        (random.Random(0), random.Random(1)),
        (np.random.default_rng(0), np.random.default_rng(1)),
        (len, max),
    ],
)
def test_two_states_differ(values: tuple[Any, Any]) -> None:
    first, second = (dataset(value=value) for value in values)
    assert state_of(first).print != state_of(second).print
    assert state_of(first) == state_of(first) and state_of(first).complete


@pytest.mark.parametrize("value", [np.zeros(1000), list(range(1000)), threading.Lock()])
def test_a_state_that_cannot_be_seen_as_a_whole(value: Any) -> None:
    """The workers start anew with each epoch."""
    data = dataset(value=value)
    assert state_of(data) == state_of(data) and not state_of(data).complete


def test_no_code_of_the_program_runs() -> None:
    data = dataset(value=Odd())
    assert state_of(data) == state_of(data) and state_of(data).complete


def test_a_change_in_place_by_torch_is_seen() -> None:
    data = dataset(value=torch.zeros(100_000))
    before = state_of(data)
    data.inner.value[7] = 1
    assert before.complete and state_of(data).print != before.print


def test_a_dataset_that_refers_to_itself_has_an_end() -> None:
    data = dataset()
    data.inner.outer = data
    assert state_of(data) == state_of(data) and state_of(data).complete


def test_what_processes_cannot_share(tmp_path: Path) -> None:
    path = tmp_path / "records.bin"
    path.write_bytes(bytes(100))
    with open(path, "rb") as file, zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, socket.socket() as connection:
        database = sqlite3.connect(":memory:")
        named = [state_of(dataset(value=[{"held": value}])).shared for value in (file, archive, connection, database)]
        database.close()
    assert named == ["the open file records.bin", "the open file a.zip", "an open socket", "an open sqlite3 Connection"]
    closed = state_of(dataset(value=[file, archive, connection])).shared
    assert not closed
    for value in (io.BytesIO(b"in memory"), logging.getLogger("of the dataset"), sys.stderr):
        assert not state_of(dataset(value=value)).shared


def test_a_position_that_moves_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "records.bin"
    path.write_bytes(bytes(100_000))
    with open(path, "rb") as file, open(tmp_path / "log", "w") as log:
        before = positions()
        assert not moved(before, positions())
        log.write("written\n" * 5000)
        log.flush()
        assert not moved(before, positions())
        file.seek(50_000)
        assert file.read(10) and moved(before, positions()) == "records.bin"


def test_a_cache_may_grow_and_does_not_count() -> None:
    """Its other contents must stay, and numbers are no cached data."""
    caches: Any = {
        "tensors": {0: torch.ones(2)},
        "slots": [None, None],
        "pairs": [],
        "numbers": {0: 1},
        "replaced": [b"a"],
        "lost": [b"a", b"b"],
    }
    data = dataset(**caches)
    before = state_of(data)
    caches["tensors"][1] = torch.ones(4)
    caches["slots"][1] = "text"
    caches["pairs"].append((torch.ones(4), 1))
    caches["numbers"][1] = 2
    caches["replaced"][0], caches["lost"][:] = b"b", [b"b"]
    after = state_of(data)
    assert after.differs(before)
    filled = after.filled_since(before)
    assert set(filled) == {id(caches[name]) for name in ("tensors", "slots", "pairs")} and filled[id(caches["tensors"])] == 16
    without = state_of(data, filled)
    caches["tensors"][2] = torch.ones(4)
    assert not state_of(data, filled).differs(without)
    caches["tensors"].popitem()
    caches["tensors"].popitem()
    assert state_of(data, filled).differs(without)
