"""Reading torch's record of collectives: kinds and bytes; when it is read, and when not."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpuconsole.agent.hooks import described
from gpuconsole.agent.hooks.evidence import collectives
from gpuconsole.agent.hooks.evidence.collectives import (
    EVENTS_CACHED,
    FlightRecorder,
    bus_factor,
    entries_of,
    kind_of,
)
from gpuconsole.agent.hooks.watch import recorder

S = 1_000_000_000


def entry(
    number: int, name: str = "nccl:_all_gather_base", at_s: float = 0.0, **fields: Any
) -> dict[str, Any]:
    """An entry as torch 2.13 pickles it."""
    return {
        "record_id": number, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1,
        "p2p_seq_id": 0, "profiling_name": name, "time_created_ns": int(at_s * S),
        "input_sizes": [[1000]], "input_dtypes": ["BFloat16"], "output_sizes": [[4, 1000]],
        "output_dtypes": ["BFloat16"], "is_p2p": False, "retired": True,
    } | fields  # fmt: skip


def dump(*entries: dict[str, Any], config: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": config or {}, "pg_status": {}, "entries": list(entries)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("nccl:ALLTOALL_BASE", "all_to_all"),
        ("nccl:broadcast", "broadcast"),
        ("nccl:send 0->1", "send_recv"),
        ("nccl:recv 0<-1", "send_recv"),
        ("nccl:all_reduce_barrier", "other"),
        ("nccl:coalesced", "other"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_bytes_and_duration_of_an_entry() -> None:
    gather, reduce = entries_of(dump(entry(0, duration_ms=1.5), entry(1, "nccl:all_reduce")), 4)
    assert (gather.bytes, gather.bus_bytes, gather.lasts_s) == (8000, 6000.0, 0.0015)
    assert (reduce.bytes, reduce.bus_bytes, reduce.lasts_s) == (8000, 12000.0, 0.0)


def test_the_size_of_a_group_is_that_of_its_configuration_and_else_not_known() -> None:
    config = {"7": {"name": "7", "desc": "mesh_tp", "ranks": "[0, 2, 4]"}}
    known, unknown = entries_of(
        dump(
            entry(0, process_group=("7", "mesh_tp")),
            entry(1, process_group=("9", "x")),
            config=config,
        ),
        8,
    )
    assert (known.size, unknown.size, unknown.bus_bytes) == (3, 0, 0.0)
    assert bus_factor("broadcast", 8) == 1.0 and bus_factor("all_gather", 1) == 0.0


class Torch:
    """A torch whose record holds `entries`; the clocks are by hand."""

    def __init__(
        self, patch: pytest.MonkeyPatch, device: str = "cpu", version: str = "2.13.0"
    ) -> None:
        self.entries: list[dict[str, Any]] = []
        self.reads, self.t, self.cpu_s, self.read_takes_s = 0, 1_000_000.0, 0.0, 0.0
        library = SimpleNamespace(
            **{"_dump_nccl_trace" if device.startswith("cuda") else "_dump_fr_trace": self.dump}
        )
        patch.setitem(
            sys.modules,
            "torch",
            SimpleNamespace(__version__=version, _C=SimpleNamespace(_distributed_c10d=library)),
        )
        patch.setattr(described, "device", lambda: device)
        patch.setattr(
            collectives,
            "time",
            SimpleNamespace(
                time=lambda: self.t, time_ns=lambda: int(self.t * S), thread_time=lambda: self.cpu_s
            ),
        )
        patch.setattr(recorder, "index", 0)
        self.patch, self.recorder = patch, FlightRecorder()

    def dump(self, includeStackTraces: bool) -> bytes:
        assert not includeStackTraces
        self.reads += 1
        self.cpu_s += self.read_takes_s
        return pickle.dumps(dump(*self.entries[-2000:]))

    def steps(self, count: int, step_s: float = 0.1, calls: int = 3) -> list[Any]:
        """Make steps with such calls, and return what was read."""
        found = []
        for _ in range(count):
            for _ in range(calls):
                self.t += step_s / calls
                self.entries.append(entry(len(self.entries), at_s=self.t))
            self.patch.setattr(recorder, "index", recorder.index + 1)
            self.t += 1e-6
            self.recorder.look(2)
            found.append(self.recorder.take())
        return [read for read in found if read is not None]


def test_calls_of_whole_steps_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(monkeypatch)
    reads = torch.steps(130)
    assert [read.kinds[0].calls / read.steps for read in reads] == [3.0] * len(reads) and len(
        reads
    ) >= 3
    assert sum(read.steps for read in reads[1:]) == pytest.approx(40 * (len(reads) - 1), abs=2), (
        "no step counts twice"
    )


def test_a_full_record_gives_the_steps_that_it_holds_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(monkeypatch)
    last = torch.steps(100, calls=300)[-1]
    assert last.steps == 6 and last.kinds[0].calls == 1800
    too_many = Torch(monkeypatch).steps(60, calls=3000)[-1]
    assert (too_many.steps, too_many.reason) == (0, collectives.TOO_MANY)


@pytest.mark.parametrize(("takes_s", "apart_s"), [(0.001, 4.0), (0.018, 32.0), (0.09, 128.0)])
def test_reads_take_a_thousandth_of_the_time(
    takes_s: float, apart_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = Torch(monkeypatch)
    torch.read_takes_s = takes_s
    torch.steps(600, step_s=1.0)
    assert torch.reads == pytest.approx(600 / apart_s, abs=2)


def test_after_a_long_read_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(monkeypatch)
    torch.read_takes_s = 0.15
    torch.steps(600, step_s=1.0)
    assert torch.reads == 1 and "150 ms" in torch.recorder.off


def test_one_process_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(monkeypatch)
    for _ in range(100):
        torch.t += 1.0
        torch.recorder.look(1)
    assert torch.reads == 0


@pytest.mark.parametrize(
    ("device", "version", "environment", "reason"),
    [
        ("cpu", "2.13.0", {"TORCH_FR_BUFFER_SIZE": "0"}, collectives.OFF),
        ("cpu", "2.8.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, collectives.OFF),
        ("cuda:0", "2.8.0+cu128", {}, collectives.NOT_SAFE),
        ("cuda:0", "2.13.0+cu130", {"TORCH_NCCL_CUDA_EVENT_CACHE": "0"}, collectives.NOT_SAFE),
    ],
)
def test_where_nothing_may_be_read_the_reason_is_given(
    device: str,
    version: str,
    environment: dict[str, str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch = Torch(monkeypatch, device, version)
    reads = torch.steps(100)
    assert torch.reads == 0 and [read.reason for read in reads] == [reason]


def test_a_gpu_reads_the_record_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(monkeypatch, "cuda:0", f"{EVENTS_CACHED[0]}.{EVENTS_CACHED[1]}.0+cu130")
    assert torch.steps(100)[0].reason == "" and torch.reads


def test_a_pickle_that_names_a_class_is_refused() -> None:
    with pytest.raises(pickle.UnpicklingError):
        collectives._loaded(lambda includeStackTraces: pickle.dumps(SimpleNamespace()), 2)
