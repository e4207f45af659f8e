"""What the programs of the corpus need: their source at a pinned commit, and made-up data in the
formats that they read.

Nothing is downloaded but source. The data are seeded: two runs of a program read the same bytes.
"""

from __future__ import annotations

import io
import pickle
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

CACHE = Path.home() / ".cache" / "gpuconsole" / "strangers"


def source(
    repository: str, commit: str, paths: tuple[str, ...], into: Path, mirrors: Path | None
) -> None:
    """Unpack `paths` of `repository` at `commit` into the folder `into`. `mirrors`: a folder with
    git directories OWNER+NAME/repo, in place of GitHub.

    Raises subprocess.CalledProcessError where git fails.
    """
    git_dir = (
        mirrors / repository.replace("/", "+") / "repo"
        if mirrors
        else CACHE / (repository.replace("/", "+") + ".git")
    )
    if not mirrors and not git_dir.exists():
        subprocess.run(["git", "init", "--quiet", "--bare", str(git_dir)], check=True)
    git = ["git", f"--git-dir={git_dir}"]
    if not mirrors:
        subprocess.run(
            [*git, "fetch", "--quiet", "--depth=1", f"https://github.com/{repository}", commit],
            check=True,
        )
    for path in paths:
        entry = f"{commit}:{path}"
        kind = subprocess.run(
            [*git, "cat-file", "-t", entry], check=True, capture_output=True, text=True
        ).stdout.strip()
        if kind == "blob":
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_bytes(
                subprocess.run([*git, "show", entry], check=True, capture_output=True).stdout
            )
        else:
            (into / path).mkdir(parents=True, exist_ok=True)
            packed = subprocess.run(
                [*git, "archive", entry], check=True, capture_output=True
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                tar.extractall(into / path, filter="data")


def mnist(folder: Path, count: int = 6000) -> None:
    """MNIST's files, as torchvision reads them: a bar in a place that depends on the label."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for part, size in (("train", count), ("t10k", 1000)):
        labels = chance.integers(0, 10, size).astype(np.uint8)
        images = chance.integers(0, 40, (size, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 + 2 * label : 5 + 2 * label, 4:24] = 200
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            np.array([2051, size, 28, 28], ">i4").tobytes() + images.tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            np.array([2049, size], ">i4").tobytes() + labels.tobytes()
        )


def photos(folder: Path, count: int = 96, size: int = 200) -> None:
    """JPEG files in train/CLASS and val/CLASS, for four classes."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for part, share in (("train", count), ("val", count // 4)):
        for number in range(share):
            path = folder / part / f"class{number % 4}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(chance.integers(0, 255, (8, 8, 3)).astype(np.uint8))
            coarse.resize((size, size), Image.Resampling.BICUBIC).save(path, quality=90)


def pets(folder: Path, count: int = 160) -> None:
    """JPEG files CLASS_NUMBER.jpg in one folder."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(chance.integers(0, 255, (8, 8, 3)).astype(np.uint8))
        coarse.resize((300, 260), Image.Resampling.BICUBIC).save(
            folder / f"{('cat', 'dog', 'owl')[number % 3]}_{number}.jpg"
        )


def words(path: Path, count: int = 60_000) -> None:
    """A text of made-up words, with lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    lexicon = [
        "".join(chance.choice("abcdefghijklmnop") for _ in range(chance.randint(2, 7)))
        for _ in range(400)
    ]
    drawn = chance.choices(
        lexicon, weights=[1 / (rank + 1) for rank in range(len(lexicon))], k=count
    )
    path.write_text(
        "\n".join(" ".join(drawn[place : place + 12]) for place in range(0, count, 12)),
        encoding="utf-8",
    )


def corpus(folder: Path) -> None:
    """train.txt, valid.txt and test.txt of made-up words."""
    for part, count in (("train", 40_000), ("valid", 4_000), ("test", 4_000)):
        words(folder / f"{part}.txt", count)


def tokens(folder: Path) -> None:
    """nanoGPT's train.bin and val.bin of random tokens, and the size of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))
    for part in ("train", "val"):
        (folder / f"{part}.bin").write_bytes(
            chance.integers(0, 256, 200_000).astype(np.uint16).tobytes()
        )


def folder(path: Path) -> None:
    """An empty folder."""
    path.mkdir(parents=True, exist_ok=True)


Recipe = Callable[[Path], None]
