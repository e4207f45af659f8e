"""Energy and power of a run are those of all its devices; where these are not known, the figures
are n/a with the reason."""

from __future__ import annotations

import pytest

from gpuconsole.model.finding import Signal
from gpuconsole.model.machine import Device, Process
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.figures.summary import NO_POWER
from gpuconsole.session.machine import FOREIGN_SERVER, OTHER_MACHINES, Energy
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import (
    Devices,
    EnvironmentKnown,
    Hello,
    Processes,
    RankJoined,
    RunClosed,
    RunOpened,
    Sample,
    Started,
    Steps,
)

WATTS = {"gpu:0": 300.0, "gpu:1": 500.0, "gpu:2": 700.0, "gpu:3": 50.0}
TOKENS_PER_S = 20_000


def trained(
    knobs: dict[str, int | str],
    *,
    workload: str = "training.gpt",
    hosts: tuple[str, ...] = (),
    listed: dict[int, str] | None = None,
    gpus: int = 4,
    silent: str = "",
    facts: dict[str, float] | None = None,
) -> tuple[SessionState, Run]:
    """80 s on GPUs of WATTS. `hosts`: of the processes, whose pids are 100, 101, ...; `listed`: the
    GPU of each as the driver lists them."""
    state = SessionState()
    devices = [Device(f"gpu:{n}", "H200", uuid=f"GPU-{n}") for n in range(gpus)]
    state.apply(Hello(0.0, "runtime", 1, "x", 1e9))
    state.apply(Devices(0.0, [*devices, Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train-gpt", workload, knobs, "gpu:0"))
    for rank, host in enumerate(hosts):
        state.apply(RankJoined(0.0, rank, host, 100 + rank, leads=rank == 0))
    state.apply(Started(0.0, knobs, facts or {}))
    state.apply(Processes(0.5, [Process(pid, device) for pid, device in (listed or {}).items()]))
    phases = tuple(0.1 if name == "forward" else 0.0 for name in PHASES)
    for second in range(80):
        t = float(second)
        for device in devices:
            if device.id != silent:
                watts = WATTS[device.id]
                state.apply(
                    Sample(t, device.id, {"gpu.power_w": watts, "gpu.energy_j": 1000.0 + watts * t})
                )
        steps = [
            Step(10 * second + n, t + n / 10, 0.1, 10, TOKENS_PER_S // 10, phases)
            for n in range(10)
        ]
        state.apply(Steps(t + 1, steps, 0.0, 0.0, 0.0, 1e9))
    state.apply(RunClosed(80.0, "1", "finished"))
    return state, run_now(state, state.records[0])


def live(state: SessionState) -> float | None:
    return state.readings.latest.get("workload.tokens_per_j{device=gpu:0}")


def test_one_gpu() -> None:
    state, run = trained({})
    assert run.summary.tokens_per_j == pytest.approx(TOKENS_PER_S / 300, rel=0.05)
    assert live(state) == pytest.approx(TOKENS_PER_S / 300)


def test_energy_of_every_gpu_of_the_run_counts() -> None:
    state, run = trained(
        {"nproc": 2}, hosts=("box", "box"), listed={100: "gpu:0", 101: "gpu:2", 7: "gpu:3"}
    )
    assert run.summary.energy_j == pytest.approx(1000 * 77, rel=0.05)
    assert run.summary.tokens_per_j == pytest.approx(TOKENS_PER_S / 1000, rel=0.05)
    assert live(state) == pytest.approx(TOKENS_PER_S / 1000)


def test_where_the_driver_lists_no_processes_all_gpus_count_if_all_are_used() -> None:
    state, run = trained({"nproc": 2}, hosts=("box", "box"), gpus=2)
    assert run.summary.tokens_per_j == pytest.approx(TOKENS_PER_S / 800, rel=0.05)
    assert live(state) == pytest.approx(TOKENS_PER_S / 800)


def test_tensor_parallel_servers() -> None:
    knobs: dict[str, int | str] = {"tensor_parallel_size": 2, "request_rate": 0, "max_num_seqs": 8}
    facts = {"max_num_seqs": 8.0}
    _, both = trained(knobs, workload="inference.serving", gpus=2, facts=facts)
    assert both.summary.tokens_per_j == pytest.approx(TOKENS_PER_S / 800, rel=0.05)
    state, run = trained(knobs, workload="inference.serving", facts=facts)
    assert (run.summary.energy_j, live(state)) == (None, None)
    assert (
        run.unavailable["workload.tokens_per_j"]
        == "which 2 of the 4 GPUs the run uses is not known"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"knobs": {"nproc": 2}, "hosts": ("box", "box")},
            "which 2 of the 4 GPUs the run uses is not known",
        ),
        ({"knobs": {"nproc": 2}, "hosts": ("box", "other")}, OTHER_MACHINES),
        (
            {
                "knobs": {"nproc": 2},
                "hosts": ("box", "box"),
                "listed": {100: "gpu:0", 101: "gpu:1"},
                "silent": "gpu:1",
            },
            NO_POWER,
        ),
        (
            {"knobs": {"request_rate": 0, "max_num_seqs": 8}, "workload": "inference.serving"},
            FOREIGN_SERVER,
        ),
    ],
)
def test_where_the_devices_are_not_known_there_is_a_reason_and_no_figure(
    arguments: dict[str, object], reason: str
) -> None:
    state, run = trained(**arguments)  # type: ignore[arg-type]
    assert (run.summary.energy_j, run.summary.tokens_per_j, live(state)) == (None, None, None)
    assert run.unavailable["workload.tokens_per_j"] == reason


def test_the_tokens_of_a_job_are_those_of_all_its_processes() -> None:
    """Four processes with 20 000 tokens/s each on four GPUs of 300 W, for 10 an hour."""
    state = SessionState()
    devices = [Device(f"gpu:{n}", "H200", uuid=f"GPU-{n}") for n in range(4)]
    state.apply(Hello(0.0, "runtime", 1, "x", 1e9))
    state.apply(Devices(0.0, devices))
    state.apply(EnvironmentKnown(0.0, Environment(price_per_hour=10.0)))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "gpu:0"))
    for rank in range(4):
        state.apply(RankJoined(0.0, rank, "box", 100 + rank, leads=rank == 0))
    state.apply(Started(0.0, {}, {}))
    phases = tuple(0.1 if name == "forward" else 0.0 for name in PHASES)
    for second in range(40):
        t = float(second)
        for device in devices:
            state.apply(
                Sample(t, device.id, {"gpu.power_w": 300.0, "gpu.energy_j": 1000.0 + 300 * t})
            )
        steps = [
            Step(10 * second + n, t + n / 10, 0.1, 10, TOKENS_PER_S // 10, phases)
            for n in range(10)
        ]
        for rank in (1, 2, 3, 0):
            state.apply(Steps(t + 1, steps, 0.0, 0.0, 0.0, 1e9, rank=rank))
    whole = 4 * TOKENS_PER_S
    assert live(state) == pytest.approx(whole / 1200)
    assert state.readings.latest["workload.cost_per_million_tokens{device=gpu:0}"] == pytest.approx(
        10 / (whole * 3600) * 1e6
    )
    state.apply(RunClosed(40.0, "1", "finished"))
    summary = run_now(state, state.records[0]).summary
    assert summary.tokens_per_j == pytest.approx(whole / 1200, rel=0.05)
    assert summary.cost_per_million_tokens == pytest.approx(10 / (whole * 3600) * 1e6)
    assert summary.tokens_per_s is not None and summary.tokens_per_s.mean == pytest.approx(whole)
    assert state.readings.latest["workload.tokens_per_s{device=gpu:0}"] == pytest.approx(whole)
    assert summary.tokens_per_j == pytest.approx(summary.tokens_per_s.mean / 1200, rel=0.05), (
        "tokens/s, tokens/J and W fit together"
    )


def test_a_counter_that_restarts_loses_nothing_that_was_counted() -> None:
    energy = Energy()
    for joules in (1e6, 2e6, 0.0, 0.3e6, 1.1e6):
        energy.add("gpu:0", "GPU-0", joules)
    total = energy.total(["gpu:0"])
    assert total is not None and total[0] == pytest.approx(2.1e6)


@pytest.mark.parametrize(
    ("host_s", "graphs"), [(0.1, True), (0.0001, True), (0.0001, False)], ids=str
)
def test_launches_are_no_rate_of_a_gpu(host_s: float, graphs: bool) -> None:
    """200 replays of a CUDA graph: the launch queue takes all of them, and the job ends before it
    is steady. 100 us a step are those of the host. Without graphs the job may have written files
    after its steps."""
    state = SessionState()
    state.apply(Hello(0.0, "runtime", 1, "x", 1e9))
    state.apply(Devices(0.0, [Device("gpu:0", "H200", uuid="GPU-0")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "gpu:0"))
    state.apply(RankJoined(0.0, 0, "box", 100, leads=True))
    state.apply(Started(0.0, {}, {}))
    phases = tuple(host_s if name == "forward" else 0.0 for name in PHASES)
    # its step time has a trend, so it is never steady
    steps = [Step(n, n * host_s, host_s * (1 + n / 20), 8, 4096, phases) for n in range(20)]
    state.apply(Steps(3.0, steps, 0.0, 0.0, 0.0, 1e9))
    if graphs:
        state.records[0].probe_signals["memory.graph_pools"] = Signal(1.0, "", "CUDA graphs")
    state.apply(RunClosed(3.1, "1", "finished"))
    found = run_now(state, state.records[0])
    assert found.steady_from_s is None
    known = host_s == 0.1 or not graphs
    assert (found.summary.tokens_per_s is not None) == known
    assert ("workload.mfu_ratio" in found.unavailable) != known
