"""The page of the jobs on this machine, in the app."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.model.machine import Listener, Process
from gpuconsole.report.machine.jobs import job_lines, what_next
from gpuconsole.session.jobs import Ports, jobs_of
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.processes import JobsScreen, ProcessesScreen
from tests.tui.fake_gpu_box import WALL, BoxSession, assert_exact, box, drawn, idle, on_box, text
from tests.tui.test_app import shows, text_of
from tests.waiting import until

GIB = 2**30
RANKS = tuple(
    Process(
        4100 + n, f"gpu:{n}", user="ada", uid=1000, command="/opt/bin/python train.py",
        started=WALL - 7300, memory_bytes=70 * GIB, sm_ratio=0.8, lineage=(4000,),
        launcher="/opt/bin/python /opt/bin/torchrun --nproc-per-node 4 train.py",
    )
    for n in range(4)
)  # fmt: skip
SERVER = Process(
    52_011, "gpu:5", user="root", uid=0, command="VLLM::EngineCore", started=WALL - 9e5,
    memory_bytes=60 * GIB, lineage=(51_900,), launcher="/usr/bin/python3 /opt/bin/vllm serve m",
)  # fmt: skip
NOTEBOOK = Process(
    6200, "gpu:4", user="bob", uid=1001, command="python3 -m ipykernel_launcher -f k.json",
    started=WALL - 9e4, memory_bytes=40 * GIB,
)  # fmt: skip
GONE = Process(3_111_222, "gpu:7", memory_bytes=10 * GIB, unseen="no such process")
UNDER = Process(
    7100, "gpu:6", user="eve", command="python b.py", started=WALL - 9, memory_bytes=GIB,
    console=7050,
)  # fmt: skip
SHOWN = msgspec.structs.replace(idle(box(8)), processes=(*RANKS, SERVER, NOTEBOOK, GONE, UNDER))
PORTS: Ports = {51_900: (Listener(8000),), 52_011: ()}


def test_rows_are_as_wide_as_asked() -> None:
    jobs = jobs_of(SHOWN.processes, PORTS)
    for width in (8, 40, 60, 80, 120, 200):
        for height in (1, 5, 24):
            assert_exact(drawn(job_lines(SHOWN, jobs, width, height), width, height), width, height)
    assert "No process" in text(
        drawn(job_lines(msgspec.structs.replace(SHOWN, processes=()), [], 80, 9), 80, 9)
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_job_has_its_kind_its_user_its_age_and_its_gpus(width: int) -> None:
    jobs = jobs_of(SHOWN.processes, PORTS)
    rows = text(drawn(job_lines(SHOWN, jobs, width, 24), width, 24)).split("\n")

    def row(pid: int) -> list[str]:
        return next(row for row in rows if row.strip().startswith(f"{pid} ")).split()

    assert row(4000)[:7] == ["4000", "torchrun", "ada", "2h01m", "gpu:0-3", "280", "GiB"]
    assert row(51_900)[:4] == ["51900", "vLLM", ":8000", "root"]
    assert row(6200)[1] == "notebook" and row(7100)[1:3] == ["gpuconsole", "7050"]
    assert row(3_111_222)[:3] == ["3111222", "unknown", "n/a"]


def test_what_shows_more_of_a_job() -> None:
    by_pid = {job.pid: what_next(job) for job in jobs_of(SHOWN.processes, PORTS)}
    assert "gpuconsole watch http://127.0.0.1:8000" in by_pid[51_900]
    assert "gpuconsole run -- " in by_pid[4000] and "7050" in by_pid[7100]
    refused = jobs_of([SERVER], {51_900: None, 52_011: None})[0]
    assert "only its user and root" in what_next(refused)


def test_j_opens_the_jobs_and_enter_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    asked: set[int] = set()

    def ports(self: BoxSession, pids: Collection[int]) -> Ports:
        asked.update(pids)
        return PORTS

    monkeypatch.setattr(ConsoleApp, "copy_to_clipboard", lambda self, text: copied.append(text))
    monkeypatch.setattr(BoxSession, "ports", ports)

    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        app.pop_screen()
        await until(lambda: isinstance(app.screen, MainScreen))
        asked.clear()
        await pilot.press("j")
        await shows(app, "5 jobs on 8 devices")
        assert asked == {4000, *(rank.pid for rank in RANKS), 51_900, 52_011, 6200, 7100}
        await pilot.press("enter")
        await shows(app, "job 4000: 4 of 8 on 4 devices")
        assert isinstance(app.screen, ProcessesScreen) and "52011" not in text_of(app)
        await pilot.press("escape")
        await shows(app, "5 jobs on 8 devices")
        await pilot.press("j", "y")
        await until(lambda: copied == ["gpuconsole watch http://127.0.0.1:8000"])
        await pilot.press("enter")
        await until(lambda: ("start", "http://127.0.0.1:8000", {}) in api.calls)
        await until(lambda: isinstance(app.screen, MainScreen))
        await pilot.press("j", "i")
        await shows(app, "gpu.hbm_used_bytes")
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_box(SHOWN, JobsScreen, body)


def test_enter_on_a_server_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """While something runs here, it opens the processes of the server."""
    monkeypatch.setattr(BoxSession, "ports", lambda self, pids: PORTS)

    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "1 job on 1 device")
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ProcessesScreen))
        assert not any(call[0] == "start" for call in api.calls)

    on_box(msgspec.structs.replace(box(8), processes=(SERVER,)), JobsScreen, body)
