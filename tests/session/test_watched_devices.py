"""The GPUs behind a watched server on this machine."""

from __future__ import annotations

from gpuconsole.model.machine import Process
from gpuconsole.model.serving import WATCHED, ServerFacts
from gpuconsole.session.machine import FOREIGN_SERVER, devices_used
from gpuconsole.session.run import RunRecord
from gpuconsole.wire.events import Processes, RunOpened, ServerKnown


def watched(*processes: int) -> RunRecord:
    record = RunRecord(
        RunOpened(0.0, "1", "http://127.0.0.1:8000", WATCHED, {}, "gpu:0", elsewhere=True), ""
    )
    record.apply(ServerKnown(0.0, ServerFacts(), list(processes)))
    record.apply(Processes(1.0, [Process(10, "gpu:2"), Process(11, "gpu:3"), Process(12, "gpu:0")]))
    return record


def test_the_gpus_of_its_processes_are_those_of_the_server() -> None:
    run = watched(9, 10, 11).run
    assert (run.server_devices, run.device, run.place) == (
        ["gpu:2", "gpu:3"],
        "gpu:2",
        "watched, on gpu:2, gpu:3",
    )
    assert devices_used(run, [], {}, []) == (frozenset({"gpu:2", "gpu:3"}), "")


def test_a_server_elsewhere_has_no_gpu_here() -> None:
    run = watched().run
    assert (run.server_devices, run.place) == ([], "watched")
    assert devices_used(run, [], {}, []) == (frozenset(), FOREIGN_SERVER)
