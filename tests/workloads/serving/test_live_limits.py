"""Limits of a server that was not started here: its file, who may change it, and that the limits
end with the console."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuconsole.workloads.serving import live_limits
from gpuconsole.workloads.serving.in_vllm import gpuconsole_caps
from gpuconsole.workloads.serving.in_vllm.gpuconsole_caps import OwnLimits, folder_of, name_of
from gpuconsole.workloads.serving.live_limits import LiveLimits, find_limits
from gpuconsole.workloads.serving.servers import IN_VLLM
from tests.waiting import wait_until

STUB = Path(__file__).parents[2] / "fakes" / "vllm_stub"
BOTH = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm."""
    monkeypatch.setattr(gpuconsole_caps, "MEMORY", str(tmp_path))
    return tmp_path


def own_file() -> Path:
    return Path(folder_of(os.getuid())) / name_of(os.getpid())


def limits_of_this_process() -> LiveLimits:
    found = find_limits([os.getpid()])
    assert found is not None
    return found


def test_a_limit_holds_while_it_is_renewed_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_limits, "LEASE_S", 0.3)
    server = OwnLimits(8, 2048)
    console = limits_of_this_process()
    assert console.chosen == BOTH and server.read() == (0, 0)
    console.set({"max_num_seqs": 2, "max_num_batched_tokens": 2048})
    assert server.read() == (2, 0)
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        assert console.renew() and server.read() == (2, 0)
    wait_until(lambda: server.read() == (0, 0))  # nobody renews it: the console is dead
    assert not console.renew(), (
        "the server had its own limits for a time, and the console hears of it"
    )


def test_the_limits_are_given_back_at_the_end() -> None:
    server = OwnLimits(8, 2048)
    console = limits_of_this_process()
    console.set({"max_num_seqs": 2, "max_num_batched_tokens": 64})
    assert server.read() == (2, 64)
    console.close()
    assert server.read() == (0, 0)


def test_only_this_user_can_open_the_file() -> None:
    OwnLimits(8, 2048)
    assert (own_file().stat().st_mode & 0o777, own_file().parent.stat().st_mode & 0o777) == (
        0o600,
        0o700,
    )


def test_a_folder_that_others_can_write_is_refused(memory: Path) -> None:
    Path(folder_of(os.getuid())).mkdir(mode=0o700)
    Path(folder_of(os.getuid())).chmod(0o777)
    with pytest.raises(PermissionError, match="is not a folder of this user alone"):
        OwnLimits(8, 2048)


def test_the_file_of_an_earlier_process_with_the_same_number_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    OwnLimits(8, 2048)
    monkeypatch.setattr(live_limits, "began", lambda pid: 1)
    assert find_limits([os.getpid()]) is None


@pytest.mark.parametrize("content", [b"", b"x" * 1000])
def test_a_file_of_another_kind_is_not_taken(content: bytes) -> None:
    OwnLimits(8, 2048)
    own_file().write_bytes(content)
    assert find_limits([os.getpid()]) is None


def test_a_link_is_not_followed(memory: Path) -> None:
    OwnLimits(8, 2048)
    own_file().rename(memory / "elsewhere")
    own_file().symlink_to(memory / "elsewhere")
    assert find_limits([os.getpid()]) is None


def test_the_files_of_dead_servers_go_with_the_next_start() -> None:
    OwnLimits(8, 2048)
    dead = own_file().with_name(f"{own_file().name.rpartition('-')[0]}-999999999")
    dead.write_bytes(b"")
    OwnLimits(8, 2048)
    assert not dead.exists() and own_file().exists()


def scheduler(monkeypatch: pytest.MonkeyPatch, **config: Any) -> Any:
    """A scheduler as a vLLM makes it that the user has started, with the flag that the docs
    name."""
    monkeypatch.delenv("GPUCONSOLE_CAPS", raising=False)
    monkeypatch.syspath_prepend(str(STUB))
    values = {"max_num_seqs": 8, "max_num_batched_tokens": 2048, **config}
    made = gpuconsole_caps.scheduler(
        vllm_config=SimpleNamespace(scheduler_config=SimpleNamespace(**values))
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]
    return made


def test_a_vllm_of_the_user_takes_limits_from_the_next_iteration_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = scheduler(monkeypatch)
    assert of.schedule() == (8, 2048)
    of.running.clear()
    console = limits_of_this_process()
    console.set({"max_num_seqs": 2, "max_num_batched_tokens": 512})
    assert of.schedule() == (2, 512)
    console.close()
    assert of.schedule() == (8, 2048)


def test_without_chunked_prefill_the_tokens_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler(monkeypatch, enable_chunked_prefill=False)
    assert limits_of_this_process().chosen == {"max_num_seqs": 8}


def test_a_vllm_that_cannot_have_a_file_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpuconsole_caps, "MEMORY", str(memory / "missing"))
    assert scheduler(monkeypatch).schedule() == (8, 2048)
    assert "gpuconsole: the limits cannot change while this server runs" in caplog.text


def test_the_module_that_the_flag_names_needs_the_standard_library_alone() -> None:
    import subprocess

    code = (
        "import sys; import gpuconsole.workloads.serving.in_vllm.gpuconsole_caps; print([m for m in"
        " ('msgspec', 'aiohttp', 'psutil', 'textual') if m in sys.modules])"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]" and IN_VLLM.is_dir()
