"""Does a probe change the job on the GPU? `python -m benchmarks.gpu_day.probes`. Prints for each
probe whether all is as before, and its answer."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from gpuconsole.agent.probes import ProbeError
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.probes.catalog import PROBES

OF_ORDINARY_STEPS = ("side_work_off", "script_lines")
"""Probes that watch the job's own steps: these steps train, as they would without the probe."""
SIZES = {"batch_size": 4, "seq_len": 256, "d_model": 512, "n_layer": 4}
WARM_STEPS = 5


def state(loop: TrainingLoop) -> list[torch.Tensor]:
    """What the next step depends on."""
    tensors = list(loop.task.model.state_dict().values())
    for values in loop.optimizer.state.values():
        tensors += [value for value in values.values() if isinstance(value, torch.Tensor)]
    return [
        tensor.clone().cpu()
        for tensor in (*tensors, torch.random.get_rng_state(), torch.cuda.get_rng_state())
    ]


def main() -> int:
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    knobs = find_scenario("train-gpt").knobs_for("gpu") | SIZES
    found: dict[str, tuple[bool, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        loop = TrainingLoop(gpt.create(knobs, device, 0), knobs, device, Path(folder))
        for _ in range(WARM_STEPS):
            loop.step()
        for name, probe in PROBES.items():
            if name in OF_ORDINARY_STEPS:
                continue
            before = state(loop)
            try:
                answer = ", ".join(
                    f"{key} {signal.value:.4g} {signal.unit}" for key, signal in probe(loop).items()
                )
            except ProbeError as error:
                answer = f"does not apply: {error}"
            torch.cuda.synchronize()
            same = all(
                torch.equal(one, other) for one, other in zip(before, state(loop), strict=True)
            )
            found[name] = (same, answer[:200])
        loop.close()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
