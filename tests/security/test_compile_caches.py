"""A trial of torch_compile writes to and loads from private folders only: another user can make torch's own one, `/tmp/torchinductor_USER`, first."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpuconsole.agent.caches import INDUCTOR, NotPrivate, PrivateCaches
from tests.security.other_user import NOBODY, needs_root

pytestmark = pytest.mark.xdist_group("compile caches")
TRAINING = """
import os, sys, time, torch
torch.set_num_threads(1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        return self.layer(x).relu().square().mean()
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
from torch._dynamo.utils import counters
until = time.monotonic() + 90
while time.monotonic() < until:
    optimizer.zero_grad()
    model(torch.ones(8, 64)).backward()
    optimizer.step()
    time.sleep(0.005)
    if counters["stats"].get("unique_graphs", 0) and until > time.monotonic() + 2:
        until = time.monotonic() + 2
print(counters["stats"].get("unique_graphs", 0))
"""


def shared_tmp(folder: Path) -> Path:
    """A folder for temporary files as /tmp is: everybody can make entries."""
    made = folder / "tmp"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.mark.slow
def test_the_files_of_a_trial_lie_in_the_private_folder_and_are_gone_after_it(tmp_path: Path) -> None:
    """A real trial in a job that compiles nothing itself. The job ends soon after it was compiled."""
    tmp, cache = shared_tmp(tmp_path), tmp_path / "cache"
    (tmp_path / "train.py").write_text(TRAINING)
    words = ["run", "--headless", "--try", "torch_compile=default", "--allow-numerics", "--", sys.executable, "train.py"]
    environment = {**os.environ, "TMPDIR": str(tmp), "LOGNAME": "victim", "XDG_CACHE_HOME": str(cache)}
    del environment[INDUCTOR]
    command = [sys.executable, "-m", "gpuconsole", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0 and int(done.stdout) >= 1, done.stderr
    assert [path for path in tmp.rglob("*") if path.is_file() and "torchinductor" in str(path)] == []
    assert [path for path in cache.rglob("*") if path.is_file()] == []


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, as /tmp is. torch's own folder is `torchinductor_victim` there."""
    pytest.importorskip("torch")
    made = shared_tmp(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setenv("LOGNAME", "victim")
    monkeypatch.delenv(INDUCTOR)
    return made


@needs_root
def test_a_folder_of_another_user_in_the_place_of_torchs_own_is_named_and_stays_empty(tmp: Path) -> None:
    planted = tmp / "torchinductor_victim"
    planted.mkdir()
    planted.chmod(0o777)
    os.chown(planted, NOBODY, NOBODY)
    with pytest.raises(NotPrivate, match=f"{planted} belongs to another user"):
        PrivateCaches().begin(str(tmp.parent / "private"))
    assert list(planted.iterdir()) == []


def test_a_folder_that_the_user_chose_stays_and_torchs_own_default_does_not_count_as_one(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, default = tmp.parent / "private", str(tmp / "torchinductor_victim")
    for before, during in (("", str(private / "torchinductor")), ("/chosen", "/chosen"), (default, str(private / "torchinductor"))):
        monkeypatch.setenv(INDUCTOR, before) if before else monkeypatch.delenv(INDUCTOR, raising=False)
        caches = PrivateCaches()
        caches.begin(str(private))
        assert os.environ[INDUCTOR] == during and not inductor_config().cpp_cache_precompile_headers
        caches.end()
        assert os.environ.get(INDUCTOR, "") == before and inductor_config().cpp_cache_precompile_headers
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_what_the_program_itself_sets_meanwhile_stays(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = PrivateCaches()
    caches.begin(str(tmp.parent / "private"))
    monkeypatch.setenv(INDUCTOR, "/chosen later")
    caches.end()
    assert os.environ[INDUCTOR] == "/chosen later"


def test_the_small_measurements_of_torch_move_too_and_come_back(tmp: Path) -> None:
    from torch._inductor.runtime.caching.memoizers import should_pad_memoizer

    cache, caches = should_pad_memoizer._disk_cache, PrivateCaches()
    before = cache._cache_dir
    caches.begin(str(tmp.parent / "private"))
    cache.insert("key", b"a pickle")
    assert [path.is_relative_to(tmp.parent / "private") for path in (cache._cache_dir, Path(cache._flock.lock_file))] == [True, True]
    assert any(path.is_file() for path in (tmp.parent / "private" / "measured" / "should_pad").iterdir())
    caches.end()
    assert cache._cache_dir == before


def test_a_folder_that_others_can_read_is_not_taken(tmp: Path) -> None:
    (tmp.parent / "open").mkdir()
    (tmp.parent / "open").chmod(0o755)
    with pytest.raises(NotPrivate, match="no private folder"):
        PrivateCaches().begin(str(tmp.parent / "open"))


def inductor_config() -> Any:
    from torch._inductor import config

    return config
