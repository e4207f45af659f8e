"""The model of the embedded server: random weights if only speed counts, or weights trained for a minute and cached, with meaningful perplexity."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpuconsole.model.knobs.catalogue import CATALOGUE, GROUPS, Knobs
from gpuconsole.workloads.cache import cache_folder
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.loop.loop import TrainingLoop

TRAIN_S = 60.0
POSITIONS = 1024
"""Positions of a trained model. Training used only the first positions, the length of a training sequence."""
TRAINING: Knobs = {"batch_size": 16, "seq_len": 128, "precision": "fp32", "lr_scheduler": "constant", "log_every": 0, "eval_every": 0}


def trained_model(d_model: int, n_layer: int, progress: Callable[[str], None]) -> gpt.GPT:
    """A GPT of that shape, trained on the King James Bible by the loop of `train-gpt`, or loaded from the cache."""
    path = models_folder() / f"gpt-bytes-{d_model}-{n_layer}.pt"
    model = gpt.GPT(d_model, n_layer, POSITIONS)
    if not path.exists():
        keep(train(d_model, n_layer, progress), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model


def train(d_model: int, n_layer: int, progress: Callable[[str], None]) -> dict[str, torch.Tensor]:
    """The weights after a minute, on the CPU."""
    names = {knob.name for group in ("loop", "model", "parallel") for knob in GROUPS[group]} | {
        "varied_lengths",
        "straggler_ms",
        "straggler_phase",
    }
    knobs = {name: default for name in names if (default := CATALOGUE[name].default) is not None}
    knobs |= {**TRAINING, "d_model": d_model, "n_layer": n_layer}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        task = gpt.create(knobs, device, 0)
        loop = TrainingLoop(task, knobs, device, Path(scratch))
        begun = reported = time.monotonic()
        while (now := time.monotonic()) - begun < TRAIN_S:
            loop.step()
            if now - reported >= 1.0:
                reported = now
                progress(f"training the model, once: {now - begun:.0f} of {TRAIN_S:.0f} s")
        loop.close()
    return {name: value.cpu() for name, value in task.model.state_dict().items()}


def keep(weights: dict[str, torch.Tensor], path: Path) -> None:
    """Write the file completely or not at all: another server may write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(dir=path.parent)
    os.close(handle)
    torch.save(weights, made)
    os.replace(made, path)


def models_folder() -> Path:
    return cache_folder() / "models"


def in_int8(model: gpt.GPT) -> gpt.GPT:
    """Linear layers with int8 weights and dynamically scaled activations (torch's dynamic quantization; CPUs only). Raises ValueError."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch recommends torchao, which would be another dependency
        from torch.ao.quantization import quantize_dynamic

        quantized = quantize_dynamic(model.float().eval(), {torch.nn.Linear}, dtype=torch.qint8)
    assert isinstance(quantized, gpt.GPT)
    return quantized
