"""A small ResNet that classifies photographs, with a DataLoader that decodes and augments JPEGs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import default_collate

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.arithmetic import Kind
from gpuconsole.workloads.training.input.loader import LoaderStream, check_room
from gpuconsole.workloads.training.input.samples import CLASSES, EPOCH, Exercise, Photographs, prepare_images, prepare_records
from gpuconsole.workloads.training.task import Batch, count_training_flops

PIXEL_BYTES = 4
"""Images are fp32 on the way to the device."""


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut; `stride` 2 halves the image."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem and three stages; `width` is the first stage's channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.stages = nn.Sequential(Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, len(CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, 3, side, side) to logits (batch, classes)."""
        return self.head(self.stages(F.relu(self.stem(images))).mean((2, 3)))


class VisionTask:
    dense_kind: Kind = "3x3 convolution"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        self._folder = prepare_images()
        self._seed = seed
        self.model: nn.Module = ResNet(int(knobs["width"])).to(device)

    def check(self, knobs: Knobs) -> None:
        self._check_room(knobs)
        if int(knobs["storage_reads"]):
            prepare_records()

    def open_stream(self, knobs: Knobs) -> LoaderStream:
        """Raises ValueError, one line, if the batches of the workers do not fit into shared memory."""
        self._check_room(knobs)
        return LoaderStream(self.photographs(knobs), knobs, self._seed, in_one_piece)

    def photographs(self, knobs: Knobs) -> Photographs:
        """The training data set under `knobs`."""
        exercise = Exercise(
            latency_s=float(knobs["storage_latency_ms"]) / 1000,
            slow_ratio=float(knobs["slow_sample_ratio"]),
            reads=int(knobs["storage_reads"]),
            blurs=int(knobs["transform_cost"]),
            strips=int(knobs["tensors_per_sample"]),
        )
        return self._photographs(knobs, self._seed, exercise)

    def eval_batch(self, knobs: Knobs) -> Batch:
        photographs = self._photographs(knobs, self._seed + 1, Exercise())
        return tuple(default_collate([photographs[i] for i in range(min(32, int(knobs["batch_size"])))]))

    def loss(self, batch: Batch) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(images).float(), labels)

    def sizes(self, batch: Batch) -> tuple[int, int]:
        return len(batch[0]), 0

    def flops_per_sample(self, knobs: Knobs) -> float:
        side = int(knobs["image_size"])
        images = torch.zeros(1, 3, side, side, device="meta")
        return count_training_flops(self.model, lambda twin: twin(images).sum())

    def _check_room(self, knobs: Knobs) -> None:
        check_room(knobs, 3 * int(knobs["image_size"]) ** 2 * PIXEL_BYTES)

    def _photographs(self, knobs: Knobs, seed: int, exercise: Exercise) -> Photographs:
        epoch = max(int(knobs["max_train_samples"]) or EPOCH, int(knobs["batch_size"]))
        return Photographs(self._folder, int(knobs["image_size"]), seed, epoch, exercise)


def in_one_piece(batch: tuple[Any, ...]) -> Batch:
    """The batch with whole images; the loader may deliver them in strips."""
    images, labels = batch
    return images if isinstance(images, torch.Tensor) else torch.cat(tuple(images), dim=2), labels


def create(knobs: Knobs, device: torch.device, seed: int) -> VisionTask:
    return VisionTask(knobs, device, seed)
