"""Limits of vLLM's scheduler that are lowered while it serves: the file, and the scheduler that
reads it in vLLM's own process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.serving import ServerFacts
from gpuconsole.workloads.serving.facts import complete
from gpuconsole.workloads.serving.in_vllm.gpuconsole_caps import LAYOUT
from gpuconsole.workloads.serving.servers import IN_VLLM, ServerFailed, VllmServer
from tests.waiting import wait_until

STUB = Path(__file__).parents[2] / "fakes" / "vllm_stub"
KNOBS: Knobs = {
    name: knob.default
    for name, knob in CATALOGUE.items()
    if knob.serving and knob.default is not None
}


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path]:
    """A scheduler as vLLM makes it, started with 8 seats and 2048 tokens, and the file with the
    limits."""
    limits = tmp_path / "limits"
    limits.write_bytes(bytes(2 * LAYOUT.size))
    monkeypatch.setenv("GPUCONSOLE_CAPS", str(limits))
    for path in (STUB, IN_VLLM):
        monkeypatch.syspath_prepend(str(path))
    import gpuconsole_caps  # type: ignore[import-not-found]

    config = SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=2048)
    made = gpuconsole_caps.scheduler(vllm_config=SimpleNamespace(scheduler_config=config))
    for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "gpuconsole_caps")]:
        del sys.modules[name]  # for good: nobody else is to find a vLLM here
    return made, limits


def put(file: Path, seats: int, tokens: int) -> None:
    with file.open("r+b") as opened:
        opened.write(LAYOUT.pack(seats, tokens))


def test_the_limits_of_the_start_are_reported_in_the_file(scheduler: tuple[Any, Path]) -> None:
    _, limits = scheduler
    assert LAYOUT.unpack_from(limits.read_bytes(), LAYOUT.size) == (8, 2048)


def test_without_limits_the_schedule_is_vllms_own(scheduler: tuple[Any, Path]) -> None:
    assert scheduler[0].schedule() == (8, 2048)


def test_limits_hold_from_the_next_schedule_on_and_can_be_taken_back(
    scheduler: tuple[Any, Path],
) -> None:
    of, limits = scheduler
    put(limits, 2, 512)
    assert of.schedule() == (2, 512)
    put(limits, 4, 0)
    assert of.schedule() == (4, 2048)


def test_who_runs_comes_to_the_end_and_nobody_is_admitted_before(
    scheduler: tuple[Any, Path],
) -> None:
    of, limits = scheduler
    of.schedule()
    put(limits, 2, 0)
    assert of.schedule()[0] == 8
    del of.running[1:]
    assert of.schedule()[0] == 2


def test_limits_above_those_of_the_start_are_those_of_the_start(
    scheduler: tuple[Any, Path],
) -> None:
    of, limits = scheduler
    put(limits, 64, 100_000)
    assert of.schedule() == (8, 2048)


def test_a_vllm_of_ours_gets_the_scheduler_and_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: our flag and path, the stub's process, and what its scheduler sees."""
    seen = tmp_path / "seen"
    monkeypatch.setenv("VLLM_STUB_FLAGS", str(tmp_path / "flags"))
    monkeypatch.setenv("VLLM_STUB_LIMITS", str(seen))
    monkeypatch.setenv("PYTHONPATH", f"{STUB}:{Path.cwd()}")

    async def live() -> None:
        server = VllmServer(
            lambda detail: None, KNOBS, {"model": "some/model"}, ("cpu",), "", tmp_path
        )
        async with aiohttp.ClientSession() as session:
            await server.start(session)
            try:
                assert server.facts["live_limit.max_num_seqs"] == KNOBS["max_num_seqs"]
                await server.set_limits({**KNOBS, "max_num_seqs": 3, "max_num_batched_tokens": 77})
                await asyncio.to_thread(
                    wait_until, lambda: seen.exists() and seen.read_text().endswith("77\n")
                )
            finally:
                await server.stop()

    asyncio.run(live())


def test_a_scheduler_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    async def live() -> None:
        server = VllmServer(
            lambda detail: None,
            KNOBS,
            {"model": "m", "vllm_args": "--scheduler-cls my.Own"},
            ("cpu",),
            "",
            tmp_path,
        )
        with pytest.raises(ServerFailed, match="--scheduler-cls of yours"):
            await server.set_limits(KNOBS)

    asyncio.run(live())


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ("", {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}),
        # the user's own flag comes last, and vLLM takes it
        ("--max-num-seqs 64", {"max_num_seqs": 64, "max_num_batched_tokens": 8192}),
        # from the log, which does not name the seats
        ("--scheduler-cls my.Own", {"max_num_batched_tokens": 8192}),
    ],
)
def test_limits_that_vllm_chooses_itself_are_read_from_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, reported: dict[str, int]
) -> None:
    monkeypatch.setenv("VLLM_STUB_FLAGS", str(tmp_path / "flags"))
    monkeypatch.setenv("PYTHONPATH", f"{STUB}:{Path.cwd()}")
    knobs: Knobs = {**KNOBS, "max_num_seqs": 0, "max_num_batched_tokens": 0}

    async def live() -> None:
        server = VllmServer(
            lambda detail: None,
            knobs,
            {"model": "some/model", "vllm_args": arguments},
            ("cpu",),
            "",
            tmp_path,
        )
        async with aiohttp.ClientSession() as session:
            await server.start(session)
            await server.stop()
        assert server.limits() == reported
        assert server.facts["max_num_seqs"] == reported.get("max_num_seqs", 0)
        whole = len(reported) == 2
        assert server.facts.get("live_limit.max_num_seqs") == (
            reported["max_num_seqs"] if whole else None
        )
        facts = complete(ServerFacts(), *server.start_facts())
        assert facts.number("max_num_batched_tokens") == 8192 and facts.number(
            "max_num_seqs"
        ) == reported.get("max_num_seqs")

    asyncio.run(live())
    flags = (tmp_path / "flags").read_text()
    assert "--max-num-batched-tokens" not in flags and flags.count(
        "--max-num-seqs"
    ) == arguments.count("--max-num-seqs")
