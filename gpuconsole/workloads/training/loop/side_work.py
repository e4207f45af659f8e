"""The side work of a training script: logs, gradient statistics, checkpoints. It writes real files into the run's scratch folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

HISTOGRAM_BINS = 64


class RunLog:
    """JSON lines, flushed after each record; optionally with a histogram of each parameter's gradient, as experiment trackers log it."""

    def __init__(self, scratch: Path) -> None:
        self._file = (scratch / "log.jsonl").open("w", encoding="utf-8")

    def write(self, step: int, loss: float, model: torch.nn.Module, gradients: bool) -> None:
        record: dict[str, object] = {"step": step, "loss": loss}
        if gradients:
            record["gradients"] = {name: _describe(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _describe(gradient: torch.Tensor) -> dict[str, object]:
    found = gradient.detach()
    flat = (found.coalesce().values() if found.is_sparse else found).float()  # of a sparse gradient: its rows
    low, high = flat.min().item(), flat.max().item()
    counts = torch.histc(flat, HISTOGRAM_BINS, low, high).tolist()
    return {"norm": flat.norm().item(), "mean": flat.mean().item(), "low": low, "high": high, "histogram": counts}


def largest_gradient_percentiles(model: torch.nn.Module, how: str) -> list[float]:
    """The 1st, 50th and 99th percentile of the largest gradient: from a Python list (`python`) or by a tensor operation (`torch`)."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None and not p.grad.is_sparse]
    if not gradients:
        return []
    values = max(gradients, key=torch.Tensor.numel).detach().flatten()
    places = [round(share * (values.numel() - 1)) for share in (0.01, 0.5, 0.99)]
    if how == "python":
        ordered = sorted(values.tolist())
        return [ordered[place] for place in places]
    return [values.kthvalue(place + 1).values.item() for place in places]


def save_checkpoint(scratch: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Model and optimizer in one file, on disk before this returns; the previous checkpoint is replaced."""
    path = scratch / "checkpoint.pt"
    partial = scratch / "checkpoint.pt.partial"
    with open(partial, "wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
