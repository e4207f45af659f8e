"""Samples that cost something: photographs that are read, decoded and augmented, and records that are read directly from the disk."""

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

import numpy
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch.utils.data import Dataset

from gpuconsole.workloads.cache import cache_folder

# --- photographs on disk -------------------------------------------------------------------------------------

Pixels = torch.Tensor | tuple[torch.Tensor, ...]
CLASSES = ("astronaut", "coffee", "hubble_deep_field", "rocket")
VARIANTS = 24
TIMES_SLOWER = 100
"""Latency of a sample in the tail of the distribution over an ordinary latency."""
EPOCH = 4096
"""Samples in an epoch. The photographs repeat within an epoch, with a different augmentation each time."""


def prepare_images() -> Path:
    """The folder of JPEG variants (crops of the shipped photographs), created once per user. Raises OSError."""
    folder = cache_folder() / "images-1"
    if folder.is_dir():
        return folder
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    chance = random.Random(0)
    for name in CLASSES:
        with (files("gpuconsole") / f"data/images/{name}.jpg").open("rb") as file:
            picture = Image.open(file).convert("RGB")
        for variant in range(VARIANTS):
            side = chance.uniform(0.7, 1.0)
            width, height = int(picture.width * side), int(picture.height * side)
            left, top = chance.randint(0, picture.width - width), chance.randint(0, picture.height - height)
            picture.crop((left, top, left + width, top + height)).save(made / f"{name}-{variant:02d}.jpg", quality=chance.randint(75, 92))
    try:
        made.rename(folder)
    except OSError:  # another run created the same folder first
        shutil.rmtree(made)
    return folder


@dataclass(frozen=True)
class Exercise:
    """Faults that make a sample slower on purpose."""

    latency_s: float = 0.0
    """A sleep before each read, like the latency of remote storage."""
    slow_ratio: float = 0.0
    """The share of reads with 100 times that latency."""
    reads: int = 0
    """Direct reads of the disk before each sample (see records.py)."""
    blurs: int = 0
    """How often the augmentation applies its blur."""
    strips: int = 1
    """The number of tensors in which an image is passed on."""


class Photographs(Dataset[tuple[Pixels, int]]):
    """Sample i: one JPEG, decoded, cropped, flipped, brightened and blurred at random; its label is the picture's class.

    With `strips` above 1 the image is a tuple of strips. The randomness depends on the index only, so no other generator changes state.
    Raises ValueError where the exercise asks for direct reads and the disk does not support them.
    """

    def __init__(self, folder: Path, side: int, seed: int, epoch: int, exercise: Exercise) -> None:
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
            slow = exercise.slow_ratio > 0 and random.Random(-1 - index).random() < exercise.slow_ratio
            time.sleep(exercise.latency_s * (TIMES_SLOWER if slow else 1))
        if self._records:
            read_records(self._records, exercise.reads, random.Random(-1 - index))
        with Image.open(self._paths[which]) as picture:
            image = self._augment(picture.convert("RGB"), chance)
        if exercise.strips > 1:  # clones: otherwise the strips would share one memory block and travel together
            return tuple(strip.clone() for strip in image.tensor_split(exercise.strips, dim=1)), self._labels[which]
        return image, self._labels[which]

    def _augment(self, image: Image.Image, chance: random.Random) -> torch.Tensor:
        side = int(min(image.size) * chance.uniform(0.5, 1.0))
        left, top = chance.randint(0, image.width - side), chance.randint(0, image.height - side)
        image = image.resize((self._side, self._side), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        if chance.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(chance.uniform(0.8, 1.2))
        for _ in range(self._exercise.blurs):
            image = image.filter(ImageFilter.GaussianBlur(2))
        pixels = torch.from_numpy(numpy.asarray(image).copy())
        return pixels.permute(2, 0, 1).float().div_(255.0).sub_(0.5)


# --- direct reads of the disk, as training on a data set that is larger than the machine's memory makes them ---

RECORD = 262144
"""Bytes of a record: about a photograph, and a multiple of the alignment of O_DIRECT."""
RECORDS = 256


def prepare_records() -> Path:
    """The file of random records, created once per user.

    Raises ValueError, one line, where there is no space for it or its file system does not support O_DIRECT.
    """
    path = cache_folder() / "records-1"
    try:
        if not path.exists():
            _write(path)
        _opened(path)
    except (AttributeError, OSError) as error:
        raise ValueError(f"storage_reads: {path} cannot be made, or cannot be read around the page cache (O_DIRECT): {error}") from error
    return path


def _write(path: Path) -> None:
    """Write the whole file or nothing, and sync it: blocks that were never written would not be read from the disk."""
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
    """A descriptor and an aligned buffer, one pair per process; a forked process gets a private copy of the buffer."""
    return os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, RECORD, flags=mmap.MAP_PRIVATE)
