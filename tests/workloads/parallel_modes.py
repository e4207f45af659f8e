"""Trains the same small GPT in every way of spreading it over processes; run by torchrun, prints
one JSON line per way."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

import torch

from gpuconsole.agent.protocol import SetKnobs
from gpuconsole.agent.service import Inbox
from gpuconsole.agent.world import ProcessWorld, Torn
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.parallel import plan_for
from gpuconsole.workloads.training.probes import communication
from gpuconsole.workloads.training.probes.memory import held_bytes, state_bytes
from gpuconsole.workloads.worker import make_service

SMALL: Knobs = {
    "batch_size": 2,
    "seq_len": 32,
    "d_model": 128,
    "n_layer": 2,
    "num_threads": 1,
    "eval_every": 0,
}
WAYS: dict[str, Knobs] = {
    "ddp": {"sharding": "ddp"},
    "zero1": {"sharding": "zero1"},
    "ddp sgd": {"sharding": "ddp", "optim": "sgd"},
    "zero1 sgd": {"sharding": "zero1", "optim": "sgd"},
    "zero2": {"sharding": "zero2"},
    "zero3": {"sharding": "zero3"},
    "bf16 hook": {"sharding": "ddp", "comm_hook": "bf16"},
    "fp16 hook": {"sharding": "ddp", "comm_hook": "fp16"},
    # several buckets on their way at once
    "powersgd": {"sharding": "ddp", "comm_hook": "powersgd", "bucket_cap_mb": 0.05},
    "accumulation": {"sharding": "ddp", "gradient_accumulation_steps": 2},
    "tensor parallel": {"tensor_parallel": 2},
}
STEPS = 8
POWERSGD_STEPS = 20
"""It begins to compress at the tenth."""
KNOBS: tuple[str, ...] = ()


def run(name: str, world: ProcessWorld, scratch: Any) -> dict[str, Any]:
    """Losses and bytes of one way, and whether probe P7 left the weights alone."""
    knobs = (
        {name: knob.default for name, knob in CATALOGUE.items() if name in KNOBS}
        | SMALL
        | WAYS[name]
    )
    torch.manual_seed(0)
    plan, device = plan_for(knobs, world), torch.device("cpu")
    loop = TrainingLoop(gpt.create(knobs, device, plan.replica), knobs, device, scratch, plan)
    gradients = 0.0
    for _ in range(POWERSGD_STEPS if name == "powersgd" else STEPS):
        loop.step()
        gradients = held_bytes(parameter.grad for parameter in loop.task.model.parameters())
    losses = [step.loss for step in loop.breakdown.take()]
    before = fingerprint(loop)
    signals = communication.exposed_communication(loop)
    unchanged = fingerprint(loop) == before
    loop.close()
    return {
        "way": name,
        "rank": world.rank,
        "losses": [sum(each) / world.size for each in zip(*world.gather(losses), strict=True)],
        "parameters": held_bytes(loop.task.model.parameters()),
        "gradients": gradients,
        "optimizer": state_bytes(plan.local(loop.optimizer)),
        "unchanged": all(world.gather(unchanged)),
        "exposed_s": signals["comm.exposed_s"].value,
    }


def refuse(name: str, world: ProcessWorld, scratch: Any) -> dict[str, Any]:
    """The last process alone runs out of memory in the midst of a forward pass at twice the
    batch."""
    knobs = (
        {name: knob.default for name, knob in CATALOGUE.items() if name in KNOBS}
        | SMALL
        | WAYS[name]
    )
    plan, device, answers = plan_for(knobs, world), torch.device("cpu"), Answers()
    loop = TrainingLoop(gpt.create(knobs, device, plan.replica), knobs, device, scratch, plan)
    loop.step()
    if world.rank == world.size - 1:
        last_block = next(
            module
            for module in loop.task.model.modules()
            if isinstance(module, torch.nn.ModuleList)
        )[-1]
        last_block.register_forward_pre_hook(_refuse_four_rows)
    service = make_service(answers, Inbox(), loop, 0, world)
    service.serve(SetKnobs(1, {"batch_size": 4}))
    loop.step()
    loop.close()
    return {
        "way": f"refused, {name}",
        "rank": world.rank,
        "errors": answers.errors,
        "batch_size": loop.knobs["batch_size"],
    }


def change_optimizer(world: ProcessWorld, scratch: Any) -> dict[str, Any]:
    """How many steps the moments of a sharded AdamW have seen after it became a fused one, and
    after a step more."""
    knobs = (
        {name: knob.default for name, knob in CATALOGUE.items() if name in KNOBS}
        | SMALL
        | WAYS["zero1"]
        | {"optim": "adamw"}
    )
    plan, device = plan_for(knobs, world), torch.device("cpu")
    loop = TrainingLoop(gpt.create(knobs, device, plan.replica), knobs, device, scratch, plan)
    loop.step()
    loop.step()
    loop.set_knobs({"optim": "adamw_fused"}, 0)
    seen = [_seen(plan.local(loop.optimizer))]
    loop.step()
    seen.append(_seen(plan.local(loop.optimizer)))
    loop.close()
    return {
        "way": "another optimizer",
        "rank": world.rank,
        "seen": seen,
        "fused": plan.local(loop.optimizer).param_groups[0]["fused"],
    }


def _seen(optimizer: torch.optim.Optimizer) -> list[float]:
    return sorted({float(state["step"]) for state in optimizer.state.values()})


class Answers:
    """Stands for the connection to the console."""

    dropped = 0

    def __init__(self) -> None:
        self.errors: list[str | None] = []

    def send(self, event: Any) -> None:
        if isinstance(event, dict) and event["event"] == "knobsset":
            self.errors.append(event["error"])

    def flush(self) -> bool:
        return True


def _refuse_four_rows(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    if inputs[0].shape[0] == 4:
        raise RuntimeError("out of memory")


def outcomes(world: ProcessWorld) -> dict[str, Any]:
    """What all processes make of a success, of a failure of all, and of a failure of one."""
    found: dict[str, Any] = {
        "way": "outcomes",
        "rank": world.rank,
        "none": world.outcome(None),
        "all": world.outcome("no room"),
    }
    try:
        found["one"] = world.outcome("no room" if world.rank else None)
    except Torn as torn:
        found["one"] = f"torn: {torn}"
    return found


def fingerprint(loop: TrainingLoop) -> list[float]:
    """Every weight of this process's part, summed in double precision per tensor."""
    parts = (
        getattr(parameter, "to_local", lambda whole=parameter: whole)()
        for parameter in loop.task.model.parameters()
    )
    return [float(part.detach().double().square().sum()) for part in parts]


if __name__ == "__main__":
    from pathlib import Path

    die_with_parent()
    KNOBS = tuple(json.loads(sys.argv[1]))
    # the least number of rounds: whether the probe changes anything does not depend on its
    # precision
    communication.BUDGET_S = 0.3

    ours = ProcessWorld("gloo", leading=True)
    folder = Path(sys.argv[2]) / str(ours.rank)
    folder.mkdir()
    jobs = [partial(run, way, ours, folder) for way in WAYS]
    jobs += [partial(refuse, way, ours, folder) for way in ("ddp", "zero3", "tensor parallel")]
    for job in (*jobs, partial(change_optimizer, ours, folder), partial(outcomes, ours)):
        for line in ours.gather(json.dumps(job())):
            if ours.rank == 0:
                print(line, flush=True)
    ours.leave()
    sys.stdout.flush()
    # as the product's own processes do: gloo's threads do not always survive the interpreter's end
    os._exit(0)
