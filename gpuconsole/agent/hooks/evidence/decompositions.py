"""Find decompositions of matrices in the graph of a loss, and their FLOPs. The code reads only the
names of nodes and the shapes of their results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ...loop import Signals
from ...protocol import CodePlace, Signal
from ..watch import program_place

SIGNAL = "decomposition.flops_ratio"
COSTS = {
    "svd": 20.0,
    "pinv": 20.0,
    "eig": 25.0,
    "eigh": 9.0,
    "matrixexp": 20.0,
    "qr": 3.0,
    "invex": 2.0,
    "choleskyex": 1 / 3,
    "solveex": 2 / 3,
    "slogdet": 2 / 3,
}
"""FLOPs divided by m n min(m, n), for a matrix with m rows and n columns (Golub and Van Loan,
chapters 3, 5, 7 and 8). Key: torch's name of the node in the backward pass."""
WORDS = {
    "svd": "singular value decomposition",
    "pinv": "pseudo-inverse",
    "eig": "eigenvalue decomposition",
    "eigh": "eigenvalue decomposition",
    "matrixexp": "matrix exponential",
    "qr": "QR decomposition",
    "invex": "inverse",
    "choleskyex": "Cholesky decomposition",
    "solveex": "system of equations",
    "slogdet": "determinant",
}


class Decompositions:
    """The decompositions in the losses of one step."""

    def __init__(self) -> None:
        self.flops = 0.0
        self._places = Counter[CodePlace]()
        """The functions of the program that call an operator of `torch.linalg` in a forward pass.
        Operators in the loss are not counted."""
        self._found = Counter[str]()

    def see(self, nodes: Iterable[Any]) -> None:
        """Add the decompositions in the graph of a loss."""
        for node in nodes:
            name = node.name().lower()
            kind = name.removeprefix("linalg").partition("backward")[0]
            if not name.startswith("linalg") or kind not in COSTS:
                continue
            shapes = [tuple(result.shape) for result in getattr(node, "_input_metadata", ())]
            dimensions = max(map(len, shapes), default=0)
            if dimensions < 2:
                continue
            matrices = [shape for shape in shapes if len(shape) == dimensions]
            rows, columns = matrices[0][-2], matrices[-1][-1]
            batch = math.prod(matrices[0][:-2])
            self.flops += COSTS[kind] * batch * rows * columns * min(rows, columns)
            self._found[f"{WORDS[kind]} ({'x'.join(map(str, (*matrices[0][:-1], columns)))})"] += 1

    def called(self, name: str, frame: FrameType) -> None:
        """An operator has run in a forward pass. `frame`: that of its caller."""
        if "linalg" in name and (place := program_place(frame)) is not None:
            self._places[place] += 1

    def signals(self, passes: float) -> Signals:
        """Return the FLOPs of all decompositions divided by the FLOPs of the passes."""
        source = "the graph of the loss of the counted step"
        for most, _ in self._found.most_common(1):
            source += f": {most}"
        place = next((place for place, _ in self._places.most_common(1)), None)
        return {SIGNAL: Signal(self.flops / passes, "ratio", source, place)}
