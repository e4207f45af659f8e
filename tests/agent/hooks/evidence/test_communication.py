"""What the agent reads of DistributedDataParallel's own timer, on real torch: one process that
exchanges with itself over gloo."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpuconsole.agent.hooks.borders.border import code_of
from gpuconsole.agent.hooks.calls import BORDERS
from gpuconsole.agent.hooks.evidence import communication as module
from gpuconsole.agent.hooks.evidence.communication import RATES, DdpExchanges
from gpuconsole.agent.hooks.guard import switch
from gpuconsole.agent.hooks.recorder import COMM
from gpuconsole.agent.hooks.watch import recorder, watch


@pytest.fixture
def exchanges() -> Iterator[DdpExchanges]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    undo = list(switch.undo)
    yield DdpExchanges()
    dist.destroy_process_group()
    switch.undo[:] = undo
    switch.parts_off.clear()
    switch.notes.clear()
    recorder.reset()
    watch.micro_batches = 1


def replica(**options: Any) -> Any:
    return DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)), **options
    )


def step(model: Any) -> None:
    model(torch.ones(4, 64)).sum().backward()
    recorder.index += 1


def test_each_timed_exchange_is_read_once_with_its_wait(exchanges: DdpExchanges) -> None:
    model = replica()
    exchanges.made(model)
    for _ in range(6):
        step(model)
        exchanges.look()
        exchanges.look()
    timed = exchanges.take()
    assert [exchange.iteration for exchange in timed] == [1, 2, 3, 4, 5], (
        "the last one is timed until the next forward pass"
    )
    assert [exchange.step for exchange in timed] == [2, 3, 4, 5, 6]
    for exchange in timed:
        assert 0 < exchange.exposed_s <= exchange.comm_s < 1
        assert exchange.forward_s > 0 and exchange.compute_s > 0
    assert exchanges.take() == []
    gradients = 4 * (64 * 64 + 64 + 64 * 8 + 8)
    assert exchanges.facts() == {
        "exchange.bytes": gradients,
        "exchange.buffer_bytes": 0.0,
        "exchange.buckets": 1.0,
        "exchange.first_buckets": 1.0,
    }


def test_a_pass_without_a_backward_pass_has_no_exchange(exchanges: DdpExchanges) -> None:
    model = replica()
    exchanges.made(model)
    for _ in range(3):
        step(model)
    exchanges.look()
    assert len(exchanges.take()) == 1
    with torch.no_grad():
        model(torch.ones(4, 64))
    exchanges.look()
    assert exchanges.take() == []


def test_on_a_cpu_ddp_times_about_one_exchange_in_a_twentieth_of_a_second(
    exchanges: DdpExchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 10 ms by a clock of the test's own: each fifth would be enough, each ninth is
    timed."""
    t = 0.0
    monkeypatch.setattr(module, "now", lambda: t)
    model = replica()
    exchanges.made(model)
    for _ in range(60):
        step(model)
        t += 0.01
        exchanges.look()
    timed = [exchange.iteration for exchange in exchanges.take()]
    assert timed == [*range(1, 11), 18, 27, 36, 45, 54]
    assert all(larger % smaller == 0 for smaller, larger in itertools.pairwise(RATES)), (
        "ranks with other rates have some in common"
    )
    exchanges.give_back()
    for _ in range(60):
        step(model)
        exchanges.look()
    assert [exchange.iteration for exchange in exchanges.take()] == [100]


class Timed:
    """A DDP module on `device_type` whose iterations DDP has timed: 30 ms of computation and 50 ms
    of exchange, 20 ms of them at the same time."""

    def __init__(self, device_type: str) -> None:
        self.device_type, self.broadcast_buffers = device_type, False
        self.iteration, self.asked = 0, list[int]()
        self.logger = self.reducer = self

    def _get_ddp_logging_data(self) -> Any:
        self.iteration += 1
        ms = {
            "forward_compute_time": 10,
            "backward_compute_time": 30,
            "backward_comm_time": 50,
            "backward_compute_comm_overlap_time": 20,
        }
        numbers = {name: round(time * 1e6) for name, time in ms.items()}
        numbers |= {
            "iteration": self.iteration,
            "backward_comm_time_end": self.iteration,
            "total_parameter_size_bytes": 400,
        }
        return SimpleNamespace(
            ints_map=numbers,
            strs_map={"bucket_sizes": "400", "rebuilt_bucket_sizes": "100, 100, 200"},
        )

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.asked.append(rate)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_what_computation_hides_is_no_wait_and_on_a_gpu_ddp_times_as_seldom_as_ever(
    device_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0.0, 0.01)
    monkeypatch.setattr(module, "now", lambda: next(times))
    timed, exchanges = Timed(device_type), DdpExchanges()
    exchanges.replicas = [module.Replica(0, timed)]
    for _ in range(20):
        exchanges.look()
    assert {
        (each.forward_s, each.compute_s, each.comm_s, each.exposed_s) for each in exchanges.take()
    } == {(0.01, 0.03, 0.05, 0.03)}
    assert exchanges.facts() == {
        "exchange.bytes": 400.0,
        "exchange.buffer_bytes": 0.0,
        "exchange.buckets": 3.0,
        "exchange.first_buckets": 1.0,
    }
    assert timed.asked == ([9] if device_type == "cpu" else [])


def test_with_no_sync_the_passes_that_exchange_are_counted(exchanges: DdpExchanges) -> None:
    model = replica()
    exchanges.made(model)
    watch.micro_batches = 3
    for _ in range(6):
        for number in range(3):
            if number < 2:
                with model.no_sync():
                    model(torch.ones(4, 64)).sum().backward()
            else:
                step(model)
        exchanges.look()
    assert exchanges.knobs()["sync_each_batch"] is False
    each = DdpExchanges()
    each.made(other := replica())
    for _ in range(3):
        for _ in range(3):
            other(torch.ones(4, 64)).sum().backward()
        recorder.index += 1
        each.look()
    assert each.knobs()["sync_each_batch"] is True


def test_collectives_that_the_program_calls_are_segments(exchanges: DdpExchanges) -> None:
    for name in (
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "barrier",
        "all_gather_object",
        "broadcast_object_list",
    ):
        border = next(border for border in BORDERS if border.path == name)
        code = code_of(sys.modules[border.module], name)
        assert code is not None and code.co_name == name
        recorder.begin([])
        assert border.begin(sys._getframe())
        border.end(False)
        assert recorder.codes.count(COMM) == 1, name


def test_buffers_that_process_0_sends_do_not_count_as_forward_pass(exchanges: DdpExchanges) -> None:
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    )
    exchanges.made(model)
    for _ in range(4):
        step(model)
        exchanges.look()
    assert {exchange.forward_s for exchange in exchanges.take()} == {0.0}


@pytest.mark.parametrize("level", ["DETAIL", "OFF"])
def test_ddp_that_prints_its_times_prints_no_more_of_them(
    level: str, exchanges: DdpExchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", level)
    model, rates = replica(), list[int]()
    exchanges.made(model)
    monkeypatch.setattr(module.Replica, "_ask", lambda replica, rate: rates.append(rate))
    for _ in range(12):
        step(model)
        exchanges.look()
    assert bool(rates) == (level == "OFF")


def test_modules_that_the_program_has_dropped_are_not_kept(exchanges: DdpExchanges) -> None:
    undone = len(switch.undo)
    for _ in range(5):
        model = replica()
        exchanges.made(model)
    assert [held.number for held in exchanges.replicas] == [4]
    del model
    exchanges.made(replica())
    assert [held.number for held in exchanges.replicas] == [5] and len(switch.undo) == undone + 1


def test_a_torch_without_these_names_ends_the_readings_only(exchanges: DdpExchanges) -> None:
    model = replica()
    exchanges.made(model)
    step(model)
    model.logger = object()
    exchanges.look()
    assert switch.parts_off == {"communication"} and not switch.failed
    assert "does not measure exchanges of gradients any longer" in switch.notes[0]
    exchanges.look()
    assert len(switch.notes) == 1
