"""Trains the same small GPT in every way of spreading it over processes; run by torchrun, prints one JSON line per way."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from gpuconsole.model.knobs import CATALOGUE, Knobs
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.communication import exposed_communication
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.memory import held_bytes, state_bytes
from gpuconsole.workloads.training.parallel.choose import plan_for
from gpuconsole.workloads.world import ProcessWorld

SMALL: Knobs = {"batch_size": 2, "seq_len": 32, "d_model": 128, "n_layer": 2, "num_threads": 1, "eval_every": 0}
WAYS: dict[str, Knobs] = {
    "ddp": {"sharding": "ddp"},
    "zero1": {"sharding": "zero1"},
    "zero2": {"sharding": "zero2"},
    "zero3": {"sharding": "zero3"},
    "bf16 hook": {"sharding": "ddp", "comm_hook": "bf16"},
    "fp16 hook": {"sharding": "ddp", "comm_hook": "fp16"},
    "powersgd": {"sharding": "ddp", "comm_hook": "powersgd"},
    "accumulation": {"sharding": "ddp", "gradient_accumulation_steps": 2},
    "tensor parallel": {"tensor_parallel": 2},
}
STEPS = 8
KNOBS: tuple[str, ...] = ()


def run(name: str, world: ProcessWorld, scratch: Any) -> dict[str, Any]:
    """Losses and bytes of one way, and whether probe P7 left the weights alone."""
    knobs = {name: knob.default for name, knob in CATALOGUE.items() if name in KNOBS} | SMALL | WAYS[name]
    torch.manual_seed(0)
    plan, device = plan_for(knobs, world), torch.device("cpu")
    loop = TrainingLoop(gpt.create(knobs, device, plan.replica), knobs, device, scratch, plan)
    gradients = 0.0
    for _ in range(STEPS):
        loop.step()
        gradients = held_bytes(parameter.grad for parameter in loop.task.model.parameters())
    losses = [step.loss for step in loop.account.take()]
    before = fingerprint(loop)
    signals = exposed_communication(loop)
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


def fingerprint(loop: TrainingLoop) -> list[float]:
    """Every weight of this process's part, summed in double precision per tensor."""
    parts = (getattr(parameter, "to_local", lambda whole=parameter: whole)() for parameter in loop.task.model.parameters())
    return [float(part.detach().double().square().sum()) for part in parts]


if __name__ == "__main__":
    from pathlib import Path

    KNOBS = tuple(json.loads(sys.argv[1]))

    ours = ProcessWorld("gloo", leading=True)
    folder = Path(sys.argv[2]) / str(ours.rank)
    folder.mkdir()
    for way in WAYS:
        found = run(way, ours, folder)
        for line in ours.gather(json.dumps(found)):
            if ours.rank == 0:
                print(line, flush=True)
    ours.leave()
