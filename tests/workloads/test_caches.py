"""What torch.compile writes in our own processes lies in their private folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuconsole.workloads import process


def test_a_folder_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (process.INDUCTOR, process.HEADERS):
        monkeypatch.delenv(name, raising=False)
    process.set_variables("/private")
    assert (os.environ[process.INDUCTOR], os.environ[process.HEADERS]) == ("/private/inductor", "0")
    monkeypatch.setenv(process.INDUCTOR, "/chosen")
    process.set_variables("/private")
    assert os.environ[process.INDUCTOR] == "/chosen"


def test_the_small_measurements_of_torch_move_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memoizers = pytest.importorskip("torch._inductor.runtime.caching.memoizers")
    cache = memoizers.should_pad_memoizer._disk_cache
    monkeypatch.setattr(cache, "_cache_dir", cache._cache_dir)
    monkeypatch.setattr(cache, "_flock", cache._flock)
    monkeypatch.setenv(process.INDUCTOR, str(tmp_path))
    process.keep_measurements()
    cache.insert("key", b"a pickle")
    assert any(path.is_file() for path in (tmp_path / "measured" / "should_pad").iterdir())
    assert Path(cache._flock.lock_file).is_relative_to(tmp_path)
