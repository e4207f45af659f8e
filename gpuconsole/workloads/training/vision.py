"""A small ResNet that classifies photographs, with a DataLoader that decodes and augments JPEGs."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import Dataset, default_collate

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind
from gpuconsole.workloads.process import cache_folder
from gpuconsole.workloads.training.loader import LoaderStream, check_room
from gpuconsole.workloads.training.task import Batch, count_training_flops

# --- photographs on disk --------------------------------------------------------------------------

Pixels = torch.Tensor | tuple[torch.Tensor, ...]
CLASSES = ("astronaut", "coffee", "hubble_deep_field", "rocket")
VARIANTS = 24
TIMES_SLOWER = 100
"""Latency of a sample in the tail of the distribution over an ordinary latency."""
EPOCH = 4096
"""Samples in an epoch. The photographs repeat within an epoch, with a different augmentation each
time."""


def prepare_images() -> Path:
    """The folder of JPEG variants (crops of the shipped photographs), created once per user. Raises
    OSError."""
    folder = cache_folder() / "images-1"
    if folder.is_dir():
        return folder
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    chance = random.Random(0)
    for name in CLASSES:
        with (files("gpuconsole") / f"data/images/{name}.jpg").open("rb") as file:
            picture = Image.open(file).convert("RGB")
        for variant in range(VARIANTS):
            side = chance.uniform(0.7, 1.0)
            width, height = int(picture.width * side), int(picture.height * side)
            left, top = (
                chance.randint(0, picture.width - width),
                chance.randint(0, picture.height - height),
            )
            picture.crop((left, top, left + width, top + height)).save(
                partial / f"{name}-{variant:02d}.jpg", quality=chance.randint(75, 92)
            )
    try:
        partial.rename(folder)
    except OSError:  # another run created the same folder first
        shutil.rmtree(partial)
    return folder


@dataclass(frozen=True)
class InjectedFault:
    """Faults that make a sample slower on purpose."""

    latency_s: float = 0.0
    """A sleep before each read, like the latency of remote storage."""
    slow_ratio: float = 0.0
    """The share of reads with 100 times that latency."""
    reads: int = 0
    """Direct reads of the disk before each sample."""
    blurs: int = 0
    """How often the augmentation applies its blur."""
    strips: int = 1
    """The number of tensors in which an image is passed on."""


class Photographs(Dataset[tuple[Pixels, int]]):
    """Sample i: one JPEG, decoded, cropped, flipped, brightened and blurred at random; its label is
    the picture's class.

    With `strips` above 1 the image is a tuple of strips. The randomness depends on the index only,
    so no other generator changes state. Raises ValueError where the exercise asks for direct reads
    and the disk does not support them.
    """

    def __init__(
        self, folder: Path, side: int, seed: int, epoch: int, exercise: InjectedFault
    ) -> None:
        self._paths = sorted(str(path) for path in folder.glob("*.jpg"))
        self._labels = [CLASSES.index(Path(path).stem.rsplit("-", 1)[0]) for path in self._paths]
        self._side = side
        self._seed = seed
        self._epoch = epoch
        self._exercise = exercise
        self._records = prepare_records() if exercise.reads else None

    def __len__(self) -> int:
        return self._epoch

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        chance = random.Random(self._seed * self._epoch + index)
        which, exercise = index % len(self._paths), self._exercise
        if exercise.latency_s:
            slow = (
                exercise.slow_ratio > 0 and random.Random(-1 - index).random() < exercise.slow_ratio
            )
            time.sleep(exercise.latency_s * (TIMES_SLOWER if slow else 1))
        if self._records:
            read_records(self._records, exercise.reads, random.Random(-1 - index))
        with Image.open(self._paths[which]) as picture:
            image = self._augment(picture.convert("RGB"), chance)
        # clones: otherwise the strips would share one memory block and travel together
        if exercise.strips > 1:
            return tuple(
                strip.clone() for strip in image.tensor_split(exercise.strips, dim=1)
            ), self._labels[which]
        return image, self._labels[which]

    def _augment(self, image: Image.Image, chance: random.Random) -> torch.Tensor:
        side = int(min(image.size) * chance.uniform(0.5, 1.0))
        left, top = chance.randint(0, image.width - side), chance.randint(0, image.height - side)
        image = image.resize(
            (self._side, self._side),
            Image.Resampling.BILINEAR,
            box=(left, top, left + side, top + side),
        )
        if chance.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(chance.uniform(0.8, 1.2))
        for _ in range(self._exercise.blurs):
            image = image.filter(ImageFilter.GaussianBlur(2))
        pixels = torch.from_numpy(numpy.asarray(image).copy())
        return pixels.permute(2, 0, 1).float().div_(255.0).sub_(0.5)


# --- direct reads from disk: the data set is larger than the page cache ---------------------------

RECORD = 262144
"""Bytes of a record: about a photograph, and a multiple of the alignment of O_DIRECT."""
RECORDS = 256


def prepare_records() -> Path:
    """The file of random records, created once per user.

    Raises ValueError, one line, where there is no space for it or its file system does not support
    O_DIRECT.
    """
    path = cache_folder() / "records-1"
    try:
        if not path.exists():
            _write(path)
        _opened(path)
    except (AttributeError, OSError) as error:
        raise ValueError(
            f"storage_reads: {path} cannot be made, or cannot be read around the page cache"
            f" (O_DIRECT): {error}"
        ) from error
    return path


def _write(path: Path) -> None:
    """Write the whole file or nothing, and sync it: blocks that were never written would not be
    read from the disk."""
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        file.write(random.Random(0).randbytes(RECORD * RECORDS))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another run created the same file first
            os.link(file.name, path)


def read_records(path: Path, count: int, chance: random.Random) -> None:
    """Read `count` records at random places from the disk, in sequence."""
    descriptor, buffer = _opened(path)
    for _ in range(count):
        os.preadv(descriptor, [buffer], RECORD * chance.randrange(RECORDS))


@functools.cache
def _opened(path: Path) -> tuple[int, mmap.mmap]:
    """A descriptor and an aligned buffer, one pair per process; a forked process gets a private
    copy of the buffer."""
    return os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, RECORD, flags=mmap.MAP_PRIVATE)


# --- the workload ---------------------------------------------------------------------------------

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
        self.stages = nn.Sequential(
            Residual(width, width, 1),
            Residual(width, 2 * width, 2),
            Residual(2 * width, 4 * width, 2),
        )
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
        """Raises ValueError, one line, if the batches of the workers do not fit into shared
        memory."""
        self._check_room(knobs)
        return LoaderStream(self.photographs(knobs), knobs, self._seed, in_one_piece)

    def photographs(self, knobs: Knobs) -> Photographs:
        """The training data set under `knobs`."""
        exercise = InjectedFault(
            latency_s=float(knobs["storage_latency_ms"]) / 1000,
            slow_ratio=float(knobs["slow_sample_ratio"]),
            reads=int(knobs["storage_reads"]),
            blurs=int(knobs["transform_cost"]),
            strips=int(knobs["tensors_per_sample"]),
        )
        return self._photographs(knobs, self._seed, exercise)

    def eval_batch(self, knobs: Knobs) -> Batch:
        photographs = self._photographs(knobs, self._seed + 1, InjectedFault())
        return tuple(
            default_collate([photographs[i] for i in range(min(32, int(knobs["batch_size"])))])
        )

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

    def _photographs(self, knobs: Knobs, seed: int, exercise: InjectedFault) -> Photographs:
        epoch = max(int(knobs["max_train_samples"]) or EPOCH, int(knobs["batch_size"]))
        return Photographs(self._folder, int(knobs["image_size"]), seed, epoch, exercise)


def in_one_piece(batch: tuple[Any, ...]) -> Batch:
    """The batch with whole images; the loader may deliver them in strips."""
    images, labels = batch
    return images if isinstance(images, torch.Tensor) else torch.cat(tuple(images), dim=2), labels


def create(knobs: Knobs, device: torch.device, seed: int) -> VisionTask:
    return VisionTask(knobs, device, seed)
