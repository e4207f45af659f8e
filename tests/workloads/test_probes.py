"""Probes leave no trace: weights, optimizer, buffers and random state are bit for bit what they
were."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuconsole.agent import probes
from gpuconsole.agent.probes import ProbeError, launch
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training import churn, gpt, vision
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.probes import gpu, loader
from gpuconsole.workloads.training.probes.catalog import PROBES
from gpuconsole.workloads.training.probes.gpu import GPU_PROBES, h2d_copies, sync_gaps
from gpuconsole.workloads.training.probes.loader import loader_alone
from tests.workloads.running import knobs_of
from tests.workloads.small import job_state, small_gpt_loop


@pytest.fixture(params=["gpt", "vision", "churn"])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    device = torch.device("cpu")
    threads = torch.get_num_threads()
    if request.param == "gpt":
        knobs = knobs_of("train-gpt", batch_size=2, seq_len=32, d_model=64, n_layer=1)
        task: Any = gpt.create(knobs, device, 0)
    elif request.param == "churn":
        knobs = knobs_of("fragmented-memory", batch_size=8, d_model=32, n_layer=1)
        task = churn.create(knobs, device, 0)
    else:
        knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8)
        task = vision.create(knobs, device, 0)
    loop = TrainingLoop(task, knobs, device, tmp_path)
    for _ in range(3):
        loop.step()
    yield loop
    loop.close()
    torch.set_num_threads(threads)


OF_ORDINARY_STEPS = ("side_work_off", "script_lines")
"""Probes that watch the job's own steps: what those change, the job would have changed without them
too."""


@pytest.mark.slow
@pytest.mark.parametrize("probe", [name for name in PROBES if name not in OF_ORDINARY_STEPS])
def test_nothing_is_changed(loop: TrainingLoop, probe: str) -> None:
    """Also where a probe finds that it does not apply."""
    before = job_state(loop)
    with contextlib.suppress(ProbeError):
        assert PROBES[probe](loop)
    after = job_state(loop)
    assert len(before) == len(after)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    # and the next step is an ordinary one: no gradient of a probe is left to be added to
    loop.step()
    assert loop.breakdown.take()[-1].kind == 0


def test_the_random_state_of_the_gpu_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.device] = []

    @contextlib.contextmanager
    def fork_rng(devices: list[torch.device]) -> Iterator[None]:
        kept.extend(devices)
        yield

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    nothing: Any = {
        "drop_gradients": lambda: None,
        "release_cached_memory": lambda: None,
        "preserved": contextlib.nullcontext,
    }
    for place in ("cpu", "cuda:1"):
        subject: Any = SimpleNamespace(
            device=torch.device(place), model=torch.nn.Linear(1, 1), **nothing
        )
        with probes.untouched(subject):
            pass
    assert kept == [torch.device("cuda:1")]


@pytest.mark.parametrize("probe", OF_ORDINARY_STEPS)
def test_steps_under_watch_train_as_any_others_do(tmp_path: Path, probe: str) -> None:
    """The same weights, bit for bit, as a twin that took as many steps unwatched."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    watched, twin = small_gpt_loop(tmp_path / "a"), small_gpt_loop(tmp_path / "b")
    torch.manual_seed(1)
    PROBES[probe](watched)
    random_state = torch.random.get_rng_state()
    torch.manual_seed(1)
    for _ in range(watched.breakdown.index):
        twin.step()
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(job_state(watched), job_state(twin), strict=True))


def test_the_stack_probe_names_the_line(tmp_path: Path) -> None:
    loop = small_gpt_loop(tmp_path, gc_collect_every=1)
    found = PROBES["script_lines"](loop)
    assert found["stack.script_ratio"].value > 0.2
    place = found["stack.line_ratio"].place
    assert place is not None and place.function == "script_work"
    assert "training/loop.py:" in place.line


@pytest.mark.slow
def test_the_loader_probe_tells_sleeping_from_computing(tmp_path: Path) -> None:
    ratios = {}
    for name, changes in {
        "sleeps": {"storage_latency_ms": 10.0},
        "computes": {"transform_cost": 8},
    }.items():
        knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8, **changes)
        loop = TrainingLoop(
            vision.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), tmp_path
        )
        ratios[name] = loader_alone(loop)["probe.loader_cpu_ratio"].value
        loop.close()
    # by how much is the machine's: what its host takes away is in no run queue
    assert ratios["sleeps"] < 0.5 < ratios["computes"]


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_the_loader_probe_measures_across_epochs(tmp_path: Path, persistent: bool) -> None:
    """The end of an epoch replaces the workers where they are not persistent: their processes no
    longer exist when the probe ends."""
    changes = {
        "num_workers": 1,
        "max_train_samples": 8,
        "persistent_workers": persistent,
        "transform_cost": 2,
    }
    knobs = knobs_of("vision-healthy", batch_size=4, width=8, **changes)
    loop = TrainingLoop(
        vision.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), tmp_path
    )
    found = loader_alone(loop)
    loop.close()
    assert 0 < found["probe.loader_cpu_ratio"].value <= 1
    assert "failed" not in found["probe.loader_samples_per_s"].source


@pytest.mark.slow
def test_the_loader_probe_tells_unpacking_from_waiting(tmp_path: Path) -> None:
    """Many tensors a sample: each has memory of its own, for which the training process must
    ask."""
    found = {}
    for collate in ("stack", "list"):
        knobs = knobs_of(
            "vision-healthy",
            batch_size=8,
            num_workers=1,
            width=8,
            image_size=32,
            collate_fn=collate,
            tensors_per_sample=16,
        )
        loop = TrainingLoop(
            vision.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), tmp_path
        )
        found[collate] = loader_alone(loop)
        loop.close()
    assert found["list"]["probe.loader_receive_ratio"].value > 0.5
    assert (
        found["list"]["probe.loader_receive_ratio"].value
        > found["stack"]["probe.loader_receive_ratio"].value
    )
    assert (
        found["list"]["probe.loader_stacked_samples_per_s"].value
        > found["list"]["probe.loader_samples_per_s"].value
    )
    assert "probe.loader_stacked_samples_per_s" not in found["stack"], "it stacks as it is"


def test_a_loader_that_cannot_have_more_workers_is_still_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8)
    loop = TrainingLoop(
        vision.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), tmp_path
    )
    opened = loop.task.open_stream

    def no_memory_for_workers(knobs: Knobs) -> Any:
        if knobs["num_workers"]:
            raise RuntimeError("unable to allocate shared memory")
        return opened(knobs)

    monkeypatch.setattr(loop.task, "open_stream", no_memory_for_workers)
    # one worker more, also where other programs make this loader wait
    monkeypatch.setattr(loader, "SLEEPS", 0.0)
    found = loader_alone(loop)
    assert set(found) == {"probe.loader_samples_per_s", "probe.loader_cpu_ratio"}
    assert (
        "num_workers 0 -> 1 failed: unable to allocate shared memory"
        in found["probe.loader_samples_per_s"].source
    )
    loop.close()


@pytest.mark.parametrize("probe", GPU_PROBES.values(), ids=GPU_PROBES)
def test_probes_of_a_gpu_say_so_on_a_cpu(loop: TrainingLoop, probe: Any) -> None:
    with pytest.raises(ProbeError, match="no GPU"):
        probe(loop)


class HostEvent:
    """What torch.cuda.Event is to a probe, on the host's clock."""

    def __init__(self, enable_timing: bool) -> None:
        self._t = 0.0

    def record(self) -> None:
        self._t = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        return (end._t - self._t) * 1e3


@pytest.mark.parametrize("probe", [launch, h2d_copies, sync_gaps])
def test_probes_of_a_gpu_change_nothing(
    loop: TrainingLoop, probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the host in place of a GPU: what they measure is nonsense then, what they leave behind
    is not."""
    for module in (gpu, probes):
        monkeypatch.setattr(module, "needs_gpu", lambda loop: None)
    monkeypatch.setattr(gpu, "BUDGET_S", 0.05)
    monkeypatch.setattr(probes, "LAUNCH_BUDGET_S", 0.05)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(gpu, "LINK_BYTES", 1 << 16)
    monkeypatch.setattr(torch.cuda, "Event", HostEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    monkeypatch.setattr(gpu, "_pinned", lambda size: torch.empty(size, dtype=torch.uint8))
    if probe is sync_gaps:
        with pytest.raises(ProbeError, match="no GPU kernel"):
            probe(loop)
        assert not list(loop.scratch.glob("*.json"))
        # the steps that it took count as a probe's
        assert {step.kind for step in loop.breakdown.take()[3:]} == {2}
        return
    before = job_state(loop)
    assert all(signal.value > 0 for signal in probe(loop).values())
    assert all(torch.equal(a, b) for a, b in zip(before, job_state(loop), strict=True))


def test_a_batch_that_does_not_fit_twice_ends_the_probe_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program waits while the probe runs. Where twice the batch does not fit, no further pass
    can answer."""
    loop = small_gpt_loop(tmp_path)
    sizes: list[int] = []
    run_pass = loop.run_pass

    def limited(batch: Any) -> None:
        sizes.append(len(batch[0]))
        if len(batch[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run_pass(batch)

    monkeypatch.setattr(loop, "run_pass", limited)
    try:
        loop.step()
        assert {
            name: signal.value for name, signal in PROBES["batch_elasticity"](loop).items()
        } == {"probe.batch_factor": 1.0}
        assert sizes == [2, 4]
    finally:
        loop.close()
