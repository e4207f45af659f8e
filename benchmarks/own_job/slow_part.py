"""A training loop whose loading has one slow part: `slow_part.py PIPELINE SECONDS [--without]
[--workers 1]`.

`--without`: the slow part is left out. Prints the samples a second after the first 3 s, and the
share of the slow part by stamps. The pipelines are written as users write them, with the transforms
of the libraries that they use.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch

SIDE = 256
BATCH = 8
WARM_S = 3.0
WORDS = (
    "the",
    "model",
    "reads",
    "a",
    "batch",
    "of",
    "data",
    "while",
    "another",
    "process",
    "waits",
    "for",
    "storage",
)


def jpegs(count: int = 64) -> list[bytes]:
    """Photos that compress as photos do: smooth random fields."""
    from PIL import Image

    generator = np.random.default_rng(0)
    encoded = []
    for _ in range(count):
        field = generator.integers(0, 255, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(field).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(
            buffer, "JPEG", quality=90
        )
        encoded.append(buffer.getvalue())
    return encoded


class Photos(Dataset):
    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.encoded = jpegs()
        self.transform = transform

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        from PIL import Image

        image = Image.open(io.BytesIO(self.encoded[index % len(self.encoded)])).convert("RGB")
        return self.transform(image)


missing: list[torch.library.Library] = []
"""Operators without code. torch forgets them with this object."""


def torchvision(slow: bool) -> Dataset:
    # torchvision of the package index is built for CUDA: its operators are missing, and the import
    # needs their names
    if "+cpu" in torch.__version__ and not missing:
        missing.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            missing[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision.transforms import v2

    members = [v2.RandomHorizontalFlip(), v2.PILToTensor()]
    if slow:
        members.insert(1, v2.RandomPerspective(p=1.0))
    return Photos(v2.Compose([*members, v2.ToDtype(torch.float32, scale=True)]))


def albumentations(slow: bool) -> Dataset:
    import albumentations as alb

    members = [alb.HorizontalFlip(), alb.Normalize()]
    if slow:
        members.insert(1, alb.CLAHE(p=1.0))
    composed = alb.Compose(members)
    return Photos(
        lambda image: torch.from_numpy(composed(image=np.asarray(image))["image"]).permute(2, 0, 1)
    )


class ByHand(Dataset):
    def __init__(self, slow: bool) -> None:
        self.encoded = jpegs()
        self.slow = slow

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        from PIL import Image, ImageFilter

        image = Image.open(io.BytesIO(self.encoded[index % len(self.encoded)])).convert("RGB")
        if self.slow:
            image = image.filter(ImageFilter.GaussianBlur(12))
        image = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1) / 255


class Texts(Dataset):
    """Token ids by a tokenizer of `transformers`; the rest of the work makes the features of a
    position."""

    def __init__(self, slow: bool) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        generator = np.random.default_rng(0)
        self.texts = [" ".join(generator.choice(WORDS, 8000)) for _ in range(64)]
        tokenizer = Tokenizer(models.BPE(unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(
            self.texts[:8],
            trainers.BpeTrainer(vocab_size=60, special_tokens=["?"], show_progress=False),
        )
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        self.slow = slow
        self.ids = self.tokenizer(self.texts[0])["input_ids"]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        ids = self.tokenizer(self.texts[index % 64])["input_ids"] if self.slow else self.ids
        table = np.zeros(3 * SIDE * SIDE, dtype=np.float32)
        table[: len(ids)] = ids
        table[: SIDE * SIDE] = np.sort(table[: SIDE * SIDE] + np.sin(np.arange(SIDE * SIDE)))
        return torch.from_numpy(table).view(3, SIDE, SIDE)


class Points(Dataset):
    def __init__(self, slow: bool) -> None:
        self.points = np.random.default_rng(0).standard_normal((64, 330, 3)).astype(np.float32)
        self.slow = slow

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        points = self.points[index % 64]
        features = self.histogram(points)
        if self.slow:
            features[0, 0, 0] += self.nearest(points).mean()
        return torch.from_numpy(features)

    def histogram(self, points: np.ndarray) -> np.ndarray:
        features = np.zeros((3, SIDE, SIDE), dtype=np.float32)
        for axis in range(3):
            counts = np.histogram2d(points[:, axis], points[:, (axis + 1) % 3], bins=SIDE)[0]
            features[axis] = np.log1p(counts)
        return features

    def nearest(self, points: np.ndarray) -> np.ndarray:
        differences = points[:, None, :] - points[None, :, :]
        distances = np.sqrt((differences**2).sum(axis=-1))
        distances.sort(axis=1)
        return distances[:, 1]


class Pipeline(NamedTuple):
    """`make`: its dataset, with the slow part or without. `named`: the slow part as the finding
    names it. `method`: the module, the class and the method that are the slow part."""

    make: Callable[[bool], Dataset]
    named: str
    method: tuple[str, str, str]


PIPELINES = {
    "torchvision": Pipeline(
        torchvision,
        "RandomPerspective",
        ("torchvision.transforms.v2", "RandomPerspective", "forward"),
    ),
    "albumentations": Pipeline(albumentations, "CLAHE", ("albumentations", "CLAHE", "__call__")),
    "pil": Pipeline(ByHand, "Image.filter", ("PIL.Image", "Image", "filter")),
    "tokenizer": Pipeline(
        Texts, "PreTrainedTokenizerBase", ("transformers", "PreTrainedTokenizerFast", "__call__")
    ),
    "numpy": Pipeline(Points, "Points.nearest", (__name__, "Points", "nearest")),
}


def stamp(owner: type, name: str, total: torch.Tensor) -> None:
    """Add the seconds of each call of a method to `total`. The stack looks as without the stamps:
    the code has the file and the name of the method."""
    plain = getattr(owner, name)

    def stamped(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            total.add_(time.perf_counter() - begun)

    names = {
        "co_filename": plain.__code__.co_filename,
        "co_name": name,
        "co_qualname": plain.__code__.co_qualname,
    }
    stamped.__code__ = stamped.__code__.replace(**names)
    setattr(owner, name, stamped)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline", choices=PIPELINES)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = PIPELINES[args.pipeline].make(not args.without)
    module, owner, name = PIPELINES[args.pipeline].method
    slow, all_of_it = (
        torch.zeros(1, dtype=torch.float64).share_memory_(),
        torch.zeros(1, dtype=torch.float64).share_memory_(),
    )
    stamp(getattr(sys.modules[module], owner), name, slow)
    stamp(fetch._MapDatasetFetcher, "fetch", all_of_it)
    loader = DataLoader(dataset, BATCH, num_workers=args.workers)
    model = nn.Sequential(
        nn.AvgPool2d(8),
        nn.Flatten(),
        nn.Linear(3 * (SIDE // 8) ** 2, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    begun, first, steps = time.perf_counter(), 0.0, 0
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        t = time.perf_counter()
        if not first and t - begun >= WARM_S:
            first, steps = t, 0
        steps += 1
        if t - begun >= args.seconds:
            break
    print(
        (
            f"samples/s {(steps - 1) * BATCH / (t - first):.2f}, slow part"
            f" {(slow / all_of_it).item():.4f}"
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
