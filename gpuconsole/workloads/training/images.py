"""Photographs on disk, read, decoded and augmented per sample, as an image training job does it."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import numpy
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch.utils.data import Dataset

CLASSES = ("astronaut", "coffee", "hubble_deep_field", "rocket")
VARIANTS = 24
TIMES_SLOWER = 100
"""A sample in the tail of a storage's latencies, over an ordinary one."""
EPOCH = 4096
"""Samples in an epoch; the photographs repeat within it, each time augmented anew."""


def prepare_images() -> Path:
    """The folder of JPEG variants (crops of the shipped photographs), made once per user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuconsole"
    folder = cache / "images-1"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=cache))
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
    except OSError:  # another run made the same folder first
        shutil.rmtree(made)
    return folder


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """Sample i: one JPEG, decoded, cropped, flipped, brightened and blurred at random; its label says which picture.

    `storage_latency_s` is slept before each read, as remote storage would make it, and 100 times that before a share
    `slow_ratio` of them; `transform_cost` is how often the blur is applied. The randomness depends on the index alone,
    so no other generator is touched.
    """

    def __init__(
        self, folder: Path, side: int, storage_latency_s: float, transform_cost: int, seed: int, epoch: int, slow_ratio: float = 0.0
    ) -> None:
        self._paths = sorted(str(path) for path in folder.glob("*.jpg"))
        self._labels = [CLASSES.index(Path(path).stem.rsplit("-", 1)[0]) for path in self._paths]
        self._side = side
        self._latency_s = storage_latency_s
        self._cost = transform_cost
        self._seed = seed
        self._epoch = epoch
        self._slow_ratio = slow_ratio

    def __len__(self) -> int:
        return self._epoch

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        chance = random.Random(self._seed * self._epoch + index)
        which = index % len(self._paths)
        if self._latency_s:
            slow = self._slow_ratio > 0 and random.Random(-1 - index).random() < self._slow_ratio
            time.sleep(self._latency_s * (TIMES_SLOWER if slow else 1))
        with Image.open(self._paths[which]) as picture:
            image = picture.convert("RGB")
        return self._augment(image, chance), self._labels[which]

    def _augment(self, image: Image.Image, chance: random.Random) -> torch.Tensor:
        side = int(min(image.size) * chance.uniform(0.5, 1.0))
        left, top = chance.randint(0, image.width - side), chance.randint(0, image.height - side)
        image = image.resize((self._side, self._side), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        if chance.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(chance.uniform(0.8, 1.2))
        for _ in range(self._cost):
            image = image.filter(ImageFilter.GaussianBlur(2))
        pixels = torch.from_numpy(numpy.asarray(image).copy())
        return pixels.permute(2, 0, 1).float().div_(255.0).sub_(0.5)
