"""Decide whether a build of torch runs on an NVIDIA driver and card. If the installed build does
not run, name the build to install.

Sources: driver by CUDA version:
docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1. Wheels and
cards: PyTorch's RELEASE.md, "PyTorch CUDA Support Matrix", with pull requests 175253 (2.11), 182849
(2.12: no CUDA 12.8), 177975 (CUDA 13.0 on PyPI since 2.11) and issue 190385 (2.15: no CUDA 12.6) of
pytorch/pytorch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

INDEX = "https://download.pytorch.org/whl/"
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver branch for programs of each major version of CUDA. A driver runs all minor
versions of its major version."""
TURING, BLACKWELL = (7, 5), (10, 0)
"""TURING: the oldest compute capability that CUDA 13 supports. BLACKWELL: the oldest compute
capability that needs CUDA 12.8 or newer (release notes of the CUDA toolkit)."""

Numbers = tuple[int, ...]


class TorchBuild(NamedTuple):
    """An installed torch. `cuda`: the CUDA version of the build, such as `13.0`; empty for a build
    without CUDA. `archs`: the answer of `torch.cuda.get_arch_list()`, such as `sm_80` and
    `compute_120`; empty if the answer is not known."""

    version: str
    cuda: str = ""
    archs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"torch {self.release} ({f'CUDA {self.cuda}' if self.cuda else 'a CPU build'})"

    @property
    def release(self) -> str:
        """Return the version without the part that names the build: `2.13.0`."""
        return self.version.partition("+")[0]


class Driver(NamedTuple):
    """An NVIDIA driver. `version`: such as `535.104.05`. `cuda`: the newest CUDA version that the
    driver runs, such as `12.2`. A package for forward compatibility (cuda-compat) makes this
    version newer than the driver alone allows. An unknown part is empty."""

    version: str = ""
    cuda: str = ""


class Card(NamedTuple):
    """A GPU: its name, and its compute capability such as `9.0`. An unknown part is empty."""

    name: str = ""
    capability: str = ""


class Wheel(NamedTuple):
    """Builds of torch for Linux. `tag`: the folder of INDEX; empty: the build on PyPI. `driver`:
    the oldest driver branch. `lowest`, `highest`: the range of compute capabilities that the builds
    have code for. `began`: the first release with these builds. `ended`: the first release without
    them; empty if new releases still have them."""

    tag: str
    driver: int
    lowest: Numbers
    highest: Numbers
    began: str
    ended: str = ""


WHEELS = (
    Wheel("", OLDEST_DRIVERS[13], TURING, (99, 9), "2.11"),
    Wheel("cu126", OLDEST_DRIVERS[12], (5, 0), (9, 0), "2.6", "2.15"),
    Wheel("cu128", OLDEST_DRIVERS[12], TURING, (12, 0), "2.7", "2.12"),
    Wheel("cu118", OLDEST_DRIVERS[11], (5, 0), (9, 0), "2.6", "2.8"),
)
"""The builds, the best first. Install the first row that fits the driver and the compute
capability."""


def why_unusable(torch: TorchBuild, driver: Driver, card: Card = Card()) -> str:  # noqa: B008  # an immutable value
    """Say in one line why this torch cannot use the GPU, and what to install. Empty if no reason is
    known.

    The caller asks only about NVIDIA GPUs: `torch.cuda` may be empty in a build for ROCm.
    """
    if not driver.version and not driver.cuda:
        return ""
    if not torch.cuda:
        return f"{torch} cannot use the GPU: {remedy(torch, driver, card)}"
    if is_too_old(torch, driver):
        needed = OLDEST_DRIVERS.get(_numbers(torch.cuda)[0])
        which = f"driver {needed} or newer" if needed else "a newer driver"
        return (
            f"driver {driver.version or f'for CUDA {driver.cuda}'} is too old for {torch}, which"
            f" needs {which}: {remedy(torch, driver, card)}"
        )
    if lacks_code(torch, card):
        about = f"compute capability {card.capability}"
        return (
            f"{torch} has no code for {card.name or 'this GPU'} ({about}):"
            f" {remedy(torch, driver, card)}"
        )
    return ""


def is_too_old(torch: TorchBuild, driver: Driver) -> bool:
    """Return whether the driver is too old for the CUDA version of this torch. False if this is
    not known."""
    if not torch.cuda:
        return False
    major = _numbers(torch.cuda)[0]
    if driver.cuda:
        return _numbers(driver.cuda)[0] < major
    return bool(driver.version) and _numbers(driver.version)[0] < OLDEST_DRIVERS.get(major, 0)


def lacks_code(torch: TorchBuild, card: Card) -> bool:
    """Return whether this torch has no code that runs on the card. False if this is not known.

    A card runs machine code (`sm_`) for its own major compute capability, up to its own minor
    number. A card also runs intermediate code (`compute_`, PTX) for its own or any lower
    capability. Code for one capability only (`sm_90a`) counts only for cards with this capability.
    Without `torch.archs`, only the limits of the CUDA toolkit are known.
    """
    if not card.capability or not torch.cuda:
        return False
    own = _numbers(card.capability)
    if not torch.archs:
        cuda = _numbers(torch.cuda)
        return (cuda >= (13,) and own < TURING) or (cuda < (12, 8) and own >= BLACKWELL)
    for arch in torch.archs:
        if parts := re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch):
            made = (int(parts[2]), int(parts[3]))
            fits = made <= own if parts[1] == "compute" else made[0] == own[0] and made[1] <= own[1]
            if made == own or (fits and not parts[4]):
                return False
    return True


def remedy(torch: TorchBuild, driver: Driver, card: Card = Card()) -> str:  # noqa: B008
    """Say what makes torch usable: a command for pip, or a newer driver."""
    branch = _branch(driver)
    own = _numbers(card.capability) if card.capability else None
    for wheel in WHEELS:
        if branch >= wheel.driver and (own is None or wheel.lowest <= own <= wheel.highest):
            wanted = f"torch=={torch.release}"
            if wheel.ended and _numbers(torch.release) >= _numbers(wheel.ended):
                wanted = f"'torch<{wheel.ended}'"
            elif _numbers(torch.release) < _numbers(wheel.began):
                wanted = f"'torch>={wheel.began}'"
            index = f" --index-url {INDEX}{wheel.tag}" if wheel.tag else ""
            # without --force-reinstall, pip keeps an installed build of the same release
            return f"pip install --force-reinstall {wanted}{index}"
    return "no build of torch runs on this driver and card; install a newer driver"


def _branch(driver: Driver) -> int:
    """Return the branch of the driver, such as 535. With forward compatibility, return the branch
    that the newest CUDA version needs, if this branch is newer."""
    branch = _numbers(driver.version)[0] if driver.version else 0
    return max(branch, OLDEST_DRIVERS.get(_numbers(driver.cuda)[0], 0) if driver.cuda else 0)


def _numbers(version: str) -> Numbers:
    """Return `2.13.0` as numbers; (0,) for a text without numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version)) or (0,)
