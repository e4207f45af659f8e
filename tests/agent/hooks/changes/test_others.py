"""Live changes of the optimizer, the precision and the model, in one process."""

from __future__ import annotations

import copy
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpuconsole.agent.hooks import described, graphs, memory
from gpuconsole.agent.hooks import job as hooks_of_job
from gpuconsole.agent.hooks import modes as modes_of_agent
from gpuconsole.agent.hooks.changes import change
from gpuconsole.agent.hooks.changes import model as model_changes
from gpuconsole.agent.hooks.changes import optimizer as optimizer_changes
from gpuconsole.agent.hooks.changes.change import ChangeRefused
from gpuconsole.agent.hooks.changes.model import (
    ChannelsLast,
    CudnnBenchmark,
    Precision,
    TorchCompile,
    mode_of,
)
from gpuconsole.agent.hooks.changes.optimizer import Optimizer
from gpuconsole.agent.hooks.evidence import arithmetic
from gpuconsole.agent.hooks.watch import Watch


class Job:
    """A small training, with the hook of the forward pass as docs/own-job-internals.md describes
    it."""

    def __init__(
        self, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any
    ) -> None:
        torch.manual_seed(1)
        self.model: Any = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
        )
        self.optimizer = kind(self.model.parameters(), lr=1e-2, **options)
        self.watch = Watch()
        self.watch.roots.append(weakref.ref(self.model))
        self.watch.optimizers.append(weakref.ref(self.optimizer))
        self.batches = torch.Generator().manual_seed(2)

    def step(self) -> float:
        x, y = (
            torch.randn(4, 3, 8, 8, generator=self.batches),
            torch.randint(0, 4, (4,), generator=self.batches),
        )
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def losses(job: Job, changes: dict[int, Any]) -> list[float]:
    found = []
    for number in range(12):
        if number in changes:
            changes[number]()
        found.append(job.step())
    return found


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (torch.optim.AdamW, {}, "adamw"),
        (torch.optim.Adam, {"fused": True}, "adamw_fused"),
        (torch.optim.SGD, {}, "sgd_plain"),
        (torch.optim.SGD, {"momentum": 0.9}, "sgd"),
        (torch.optim.RMSprop, {}, "rmsprop"),
    ],
)
def test_the_optimizer_has_its_own_name(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], name: str
) -> None:
    assert Optimizer().read(Job(kind, **options).watch) == name


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_a_fused_optimizer_and_back(kind: type[torch.optim.Optimizer]) -> None:
    plain, job, fused = losses(Job(kind), {}), Job(kind), Optimizer()
    states = []

    def on() -> None:
        fused.set(job.watch, "adamw_fused")
        states.append(fused.read(job.watch))

    found = losses(
        job,
        {
            3: on,
            6: lambda: states.append(job.optimizer.state_dict()),
            8: lambda: fused.set(job.watch, "adamw"),
        },
    )
    assert found == pytest.approx(plain, rel=1e-5)
    assert states[0] == "adamw_fused" and fused.read(job.watch) == "adamw"
    own = Job(kind).optimizer.state_dict()["param_groups"]
    assert states[1]["param_groups"] == own, "a checkpoint of the program holds its own flags"
    assert (
        not job.optimizer._optimizer_step_pre_hooks and not job.optimizer._optimizer_step_post_hooks
    )


@pytest.mark.parametrize("name", ["adamw", "adamw_foreach"])
@pytest.mark.parametrize("within", [False, True])
def test_a_fused_optimizer_with_a_scaler_of_gradients(name: str, within: bool) -> None:
    """GradScaler leaves the scaling to a fused update, and the other updates raise then. `within`:
    the change is made within the step of the scaler."""

    def weights(change: bool) -> tuple[list[float], bool]:
        job, changed, scaler = (
            Job(fused=True),
            Optimizer(),
            torch.amp.GradScaler("cpu", init_scale=64.0),
        )
        wanted = dict[int, str]({3: name, 6: "adamw_fused"} if change else {})

        def make_change(step: int) -> None:
            if step in wanted:
                changed.set(job.watch, wanted[step])

        for step in range(9):
            job.optimizer.zero_grad()
            scaler.scale(job.model(torch.ones(2, 3, 8, 8)).square().mean()).backward()
            hook = (
                job.optimizer.register_step_post_hook(lambda *_, step=step: make_change(step))
                if within
                else None
            )
            scaler.step(job.optimizer)
            scaler.update()
            if hook is not None:
                hook.remove()
            else:
                make_change(step)
        takes_scale = bool(job.optimizer._step_supports_amp_scaling)  # type: ignore[attr-defined]
        return [float(weight.sum()) for weight in job.model.parameters()], takes_scale

    plain, changed = weights(False), weights(True)
    assert changed[0] == pytest.approx(plain[0], rel=1e-5)
    assert plain[1] and changed[1]


def test_an_update_for_which_the_program_sets_a_tensor_as_its_rate_runs_as_ever() -> None:
    job, foreach = Job(foreach=False), Optimizer()

    def tensor_rate() -> None:
        job.optimizer.param_groups[0]["lr"] = torch.tensor(1e-3)

    losses(job, {3: lambda: foreach.set(job.watch, "adamw_foreach"), 6: tensor_rate})
    assert (
        foreach.read(job.watch) == "adamw_foreach"
        and job.optimizer.param_groups[0]["foreach"] is False
    )


def test_the_fused_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = torch._fused_adamw_

    def kernel(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch, "_fused_adamw_", kernel)
    job, fused = Job(), Optimizer()
    losses(
        job,
        {3: lambda: fused.set(job.watch, "adamw_fused"), 8: lambda: fused.set(job.watch, "adamw")},
    )
    assert len(calls) == 5 + 1, "five steps, and one of a copy"


@pytest.mark.parametrize("raises", ["closure", "update"])
def test_a_step_that_raises_leaves_the_flags_of_the_program(
    raises: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, fused = Job(), Optimizer()
    job.step()
    own = job.optimizer.state_dict()["param_groups"]

    def flags() -> list[Any]:
        return job.optimizer.state_dict()["param_groups"]

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("of the program")

    def closure() -> torch.Tensor:
        assert flags() == own and job.optimizer.param_groups[0]["fused"] is None, (
            "the closure belongs to the program"
        )
        return fail() if raises == "closure" else torch.zeros(())  # type: ignore[func-returns-value]

    for on in (True, False):
        fused.set(job.watch, "adamw_fused" if on else "adamw")
        if on:
            # the second step must not take the flags of the first one for those of the program
            for _ in range(2):
                with monkeypatch.context() as patch:
                    if raises == "update":
                        patch.setattr(torch, "_fused_adamw_", fail)
                    with pytest.raises(RuntimeError, match="of the program"):
                        job.optimizer.step(closure)
                assert flags() == own
        else:
            assert (
                job.optimizer.param_groups[0]["fused"],
                job.optimizer.param_groups[0]["foreach"],
            ) == (None, None)
        job.step()
        assert flags() == own


def test_a_fused_optimizer_survives_copies_and_pickles() -> None:
    job, fused = Job(), Optimizer()
    losses(job, {3: lambda: fused.set(job.watch, "adamw_fused")})
    torch.save(job.optimizer, __import__("io").BytesIO())
    assert copy.deepcopy(job.optimizer).param_groups[0]["fused"] is None


@pytest.mark.parametrize(
    ("job", "value", "words"),
    [
        (lambda: Job(torch.optim.SGD), "adamw_fused", "SGD is made by the program"),
        (
            lambda: Job(capturable=False, differentiable=True, foreach=False),
            "adamw_fused",
            "differentiable",
        ),
        (Job, "adamw_8bit", "another algorithm"),
    ],
)
def test_optimizers_that_cannot_change(job: Any, value: str, words: str) -> None:
    made = job()
    if "differentiable" not in words:
        made.step()
    else:
        made.optimizer.state[made.model[0].weight]["step"] = torch.tensor(1.0)
    with pytest.raises(ChangeRefused, match=words):
        Optimizer().set(made.watch, value)


def test_gradients_in_another_layout_are_refused() -> None:
    job = Job()
    job.step()
    job.model[0].weight.grad = job.model[0].weight.grad.to(memory_format=torch.channels_last)
    with pytest.raises(ChangeRefused, match="layouts"):
        Optimizer().set(job.watch, "adamw_fused")


def test_tf32_and_back_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    job, precision = Job(), Precision()
    monkeypatch.setattr(model_changes, "device_of", lambda watch: "cuda")
    before = torch.get_float32_matmul_precision()
    for value in ("tf32", "fp32", "tf32"):
        precision.set(job.watch, value)
        assert precision.read(job.watch) == value
    precision.set(job.watch, "fp32")
    assert torch.get_float32_matmul_precision() == before


def test_other_precisions_are_a_matter_of_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    job, precision = Job(), Precision()
    for device, values in (("cpu", ("fp16", "bf16", "tf32")), ("cuda", ("fp16", "bf16"))):
        monkeypatch.setattr(model_changes, "device_of", lambda watch, device=device: device)
        for value in values:
            with pytest.raises(ChangeRefused, match="--restart-knob"):
                precision.set(job.watch, value)
    job.watch.autocast = "bf16"
    assert precision.read(job.watch) == "bf16"
    assert "inside autocast" in precision.why_fixed(job.watch)


@pytest.mark.parametrize(
    ("dtype", "name", "bits"), [(torch.float64, "fp64", 64), (torch.bfloat16, "bf16", 16)]
)
def test_the_precision_of_weights_that_are_not_in_fp32_is_theirs_and_stays(
    dtype: torch.dtype, name: str, bits: int
) -> None:
    job, precision = Job(), Precision()
    job.model.to(dtype)
    assert precision.read(job.watch) == name and f"{bits} bits" in precision.why_fixed(job.watch)


def test_torch_compile_is_observed_and_never_changed() -> None:
    job, compiled = Job(), TorchCompile()
    assert compiled.read(job.watch) == "off" and "--restart-knob" in compiled.why_fixed(job.watch)
    with pytest.raises(ChangeRefused, match=r"torch\.compile"):
        compiled.set(job.watch, "default")
    assert job.model._compiled_call_impl is None


def test_a_model_that_the_program_compiles_is_left_alone() -> None:
    job = Job()
    job.model.compile(backend="eager")
    assert TorchCompile().read(job.watch) == "default"
    assert "itself" in TorchCompile().why_fixed(job.watch)


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ({"mode": "reduce-overhead"}, "reduce-overhead"),
        ({"mode": "max-autotune"}, "max-autotune"),
        ({"options": {"triton.cudagraphs": True}}, "reduce-overhead"),
        ({"mode": "max-autotune-no-cudagraphs"}, "default"),
        ({}, "default"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_the_mode_of_a_compiled_model_is_read(
    words: dict[str, Any], mode: str, in_place: bool
) -> None:
    model = torch.nn.Linear(4, 1)
    compiled = model if in_place else torch.compile(model, **words)
    if in_place:
        model.compile(**words)
    assert mode_of([compiled]) == mode
    assert mode_of([]) == "off"


def test_channels_last_is_observed_and_never_changed() -> None:
    """The strides of a weight belong to the program: `weight.view(-1)` fails in the other
    layout."""
    job, layout = Job(), ChannelsLast()
    assert layout.read(job.watch) is False and "channels_last" in layout.why_fixed(job.watch)
    with pytest.raises(ChangeRefused, match="strides"):
        layout.set(job.watch, True)
    job.model.to(memory_format=torch.channels_last)
    assert layout.read(job.watch) is True


def test_channels_last_and_cudnn_need_convolutions_and_a_gpu() -> None:
    job = Job()
    assert "no GPU" in CudnnBenchmark().why_fixed(job.watch)
    job.model = nn.Linear(2, 2)
    job.watch.roots[:] = [weakref.ref(job.model)]
    assert ChannelsLast().read(job.watch) is None


def test_what_changes_numerics_needs_the_users_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuconsole.agent.hooks import changes, watch

    job = Job()
    monkeypatch.setattr(watch, "watch", job.watch)
    monkeypatch.setattr(model_changes, "device_of", lambda watch: "cuda")
    monkeypatch.setattr(changes, "device_of", lambda watch: "cpu")
    with pytest.raises(ChangeRefused, match="changes numerics"):
        changes.begin_change("precision", "tf32")
    job.watch.allows_numerics = True
    changes.begin_change("precision", "tf32")
    changes.begin_change("precision", "fp32")
    assert changes.effects()["precision"] == change.CHANGES_NUMERICS


def test_the_buckets_of_ddp_are_known_and_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuconsole.agent.hooks import changes, described

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        job = Job()
        wrapped = nn.parallel.DistributedDataParallel(job.model, bucket_cap_mb=2)
        job.watch.roots.append(weakref.ref(wrapped))
        for module in (described, changes):
            monkeypatch.setattr(module, "watch", job.watch, raising=False)
        monkeypatch.setattr(described, "place", lambda: (0, 2))
        assert described.observed_knobs()["bucket_cap_mb"] == 2.0
    finally:
        torch.distributed.destroy_process_group()
    assert "the job would hang: DistributedDataParallel(model, bucket_cap_mb=...)" in change.why(
        "bucket_cap_mb", job.watch
    )


def test_settings_that_cannot_change_say_why_and_show_code() -> None:

    job = Job()
    assert "DataLoader" not in change.why("batch_size", job.watch), "the program has none"
    job.watch.loader = lambda: object()
    assert "DataLoader(dataset, batch_size=...)" in change.why("batch_size", job.watch)
    assert "torchrun" in change.why("nproc", job.watch)


def test_a_knob_that_changes_without_the_console_varies_in_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first steps only show what a knob is: the size of the largest batch so far, for
    example."""
    seen = iter(
        [
            {"batch_size": 8, "num_workers": 0},
            {"batch_size": 9, "num_workers": 0},
            {"batch_size": 12, "num_workers": 4, "optim": "sgd"},
        ]
    )
    monkeypatch.setattr(described, "observed_knobs", lambda: next(seen))
    loop, recorder = hooks_of_job.JobLoop(), hooks_of_job.recorder
    for index, varies in (
        (3, set[str]()),
        (hooks_of_job.COUNT_AT - 1, set[str]()),
        (hooks_of_job.COUNT_AT, {"batch_size"}),
    ):
        monkeypatch.setattr(recorder, "index", index)
        loop._asked = {"num_workers"}
        loop.observe()
        assert loop.varies == varies
    loop.close()


def test_the_precision_that_the_counted_step_shows_does_not_vary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FSDP 2 computes in bf16 on parameters in fp32."""
    seen = iter({"precision": value} for value in ("fp32", "bf16", "fp32"))
    monkeypatch.setattr(described, "observed_knobs", lambda: next(seen))
    loop = hooks_of_job.JobLoop()
    monkeypatch.setattr(hooks_of_job.recorder, "index", hooks_of_job.COUNT_AT)
    loop.observe()
    monkeypatch.setattr(hooks_of_job.watch, "counted_precision", "bf16")
    loop.varies.clear()
    loop.observe()
    assert loop.varies == set()
    loop.observe()
    assert loop.varies == {"precision"}, "from then on, the program changes it"
    loop.close()


def captured(graph: Any) -> None:
    """What the borders of a graph report of its capture."""
    graphs._present.graph = weakref.ref(graph)
    graphs.capture_ended(False)


def test_nothing_of_the_model_changes_while_the_program_replays_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph keeps the addresses of the weights: those in another layout would be trained no
    longer."""

    class Graph:
        pass

    job, graph = Job(), Graph()
    job.step()
    monkeypatch.setattr(model_changes, "device_of", lambda watch: "cuda")
    changes_of_model = (Precision(), Optimizer())
    assert not any(change.why_fixed(job.watch) for change in changes_of_model)
    captured(graph)
    for refused, value in zip(changes_of_model, ("tf32", "adamw_fused"), strict=True):
        with pytest.raises(ChangeRefused, match="replays a CUDA graph"):
            refused.set(job.watch, value)
    del graph
    assert not any(change.why_fixed(job.watch) for change in changes_of_model)


class Sees(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_nothing_of_the_model_changes_where_a_mode_of_the_program_sees_each_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that counts its operators would count others."""
    looks = modes_of_agent.Modes()
    monkeypatch.setattr(modes_of_agent, "modes", looks)
    job = Job()
    job.step()
    monkeypatch.setattr(model_changes, "device_of", lambda watch: "cuda")
    changes_of_model = (Precision(), Optimizer())
    with torch.device("cpu"):
        assert not any(change.why_fixed(job.watch) for change in changes_of_model)
    with Sees():
        looks.look()
        assert all(
            "sees each operator" in change.why_fixed(job.watch) for change in changes_of_model
        )
    assert all(
        "sees each operator" in change.why_fixed(job.watch) for change in changes_of_model
    ), "the program has it on now and then"
    monkeypatch.setattr(
        modes_of_agent.recorder,
        "index",
        modes_of_agent.recorder.index + modes_of_agent.FORGOTTEN_AFTER,
    )
    assert not any(change.why_fixed(job.watch) for change in changes_of_model), (
        "the program counted its operators in its first steps only"
    )


def test_the_mode_of_the_agent_that_counts_flops_is_none_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backward pass may lie within a forward pass, in which the agent counts."""
    looks = modes_of_agent.Modes()
    monkeypatch.setattr(arithmetic, "modes", looks)
    monkeypatch.setattr(arithmetic, "has_compiled", lambda: False)  # tests before compile
    counting = arithmetic.StepCount()
    counting.enter()
    try:
        assert modes_of_agent.has_modes()
        looks.look()
    finally:
        counting.leave()
    assert not modes_of_agent.has_modes() and not looks.why_fixed()


class Calls(TorchFunctionMode):
    """Counts the functions of torch that are called, also those that read an attribute of a
    tensor."""

    seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_no_call_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuconsole.agent.hooks import changes, watch

    job = Job()
    job.step()
    monkeypatch.setattr(watch, "watch", job.watch)
    monkeypatch.setattr(modes_of_agent, "modes", modes_of_agent.Modes())
    with Calls() as calls:
        changes.observed()
        changes.effects()
        assert changes.why_fixed("optim")
        for change, value in (
            (Precision(), "bf16"),
            (TorchCompile(), "default"),
            (Optimizer(), "adamw_fused"),
        ):
            with pytest.raises(ChangeRefused):
                change.set(job.watch, value)
    assert calls.seen == 0


def test_a_graph_of_torch_compile_is_no_graph_of_the_program() -> None:
    graph = type("Graph", (), {})()
    exec(
        "captured(graph)",
        {"__name__": "torch._inductor.cudagraph_trees", "captured": captured, "graph": graph},
    )
    assert not graphs.why_fixed()


def test_a_change_for_which_there_is_no_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the allocation would fail within a pass of the program."""
    figures = {
        "reserved_bytes": {"all": {"current": 900}},
        "allocated_bytes": {"all": {"peak": 800}},
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: figures)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    change.require_room(400, torch.device("cuda"), "copies")
    change.require_room(401, torch.device("cpu"), "copies")
    with pytest.raises(ChangeRefused, match="no room for copies"):
        change.require_room(401, torch.device("cuda"), "copies")

    def no_room(needed: float, device: torch.device, what: str) -> None:
        asked.append((needed, what.split()[0]))
        raise ChangeRefused("no room")

    asked, job = list[Any](), Job()
    job.step()
    sizes = [weight.numel() for weight in job.model.parameters()]
    monkeypatch.setattr(optimizer_changes, "require_room", no_room)
    with pytest.raises(ChangeRefused, match="no room"):
        Optimizer().set(job.watch, "adamw_foreach")
    assert asked == [(4 * sum(sizes), "the")]


@pytest.mark.parametrize("shards", [False, True])
def test_a_job_whose_optimizer_is_on_the_host_is_a_job_of_its_gpu(
    shards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    monkeypatch.setattr(described, "watch", job.watch)
    assert described.device() == "cpu"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert described.device() == "cpu"
    if shards:
        job.model.set_reshard_after_backward = None
    else:
        weight = type("OnGpu", (), {"is_cuda": True, "device": "cuda:3"})()
        monkeypatch.setattr(
            described, "structure", lambda watch: type("Model", (), {"parameters": [weight]})
        )
    assert described.device() == "cuda:3"


@pytest.mark.parametrize("of_ours", [True, False])
def test_an_allocation_that_fails_in_the_first_steps_of_a_change_takes_it_back(
    of_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, taken_back = memory.FirstSteps(), list[str]()
    monkeypatch.setattr(memory.recorder, "index", 7)
    steps.begin("optim=adamw_fused", lambda: taken_back.append("fused"))
    assert steps.under_way
    monkeypatch.setattr(memory.recorder, "index", 8 if of_ours else 9)
    assert steps.failed("CUDA out of memory.\nTried") == ("optim=adamw_fused" if of_ours else "")
    assert taken_back == ["fused"] * of_ours
    assert steps.why_failed() == (
        "out of memory in the first steps with optim=adamw_fused: CUDA out of memory."
        if of_ours
        else ""
    )
    assert not steps.under_way and not steps.failed("CUDA out of memory")
