"""Find modules that a forward pass calls many times with inputs that could be one batch.

The operators of the counted step show from which parameters each tensor is computed. If the input
of a call is computed from the module's own parameters, the call depends on an earlier call.
Examples are a cell of a recurrent network, a layer with shared weights, and a step of a sampler.
Such calls must run one after the other. Calls with inputs of one shape that depend on no earlier
call could be one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ...loop import Signals
from ...protocol import CodePlace, Signal
from ...step_breakdown import median
from ..guard import ask
from ..structure import inner_modules, parameters_of
from ..watch import program_place
from .tables import is_plain

CALLS, RATIO = "repeated.calls", "repeated.operators_ratio"
MIN_CALLS = 4
"""The least number of calls: a siamese network makes two calls, a triplet loss three."""
MAX_CALLS = 20_000
"""The most calls of modules in one pass that are examined."""
PLAIN = (type(None), bool, int, float, str)
"""Classes of arguments that hold no state."""
READS_A_NUMBER = "_local_scalar_dense"


class Calls:
    """The calls of one module in one pass. `shapes`: the shapes of the tensors in the first call.
    `starts`: the number of operators before each call. `parameters`: the bits of the module's
    parameters. `holds_state`: an argument is an object in which an earlier call may have left data.
    Such calls, and the calls within them, must run one after the other."""

    def __init__(self, module: Any, parameters: int, size: int, shapes: list[Any]) -> None:
        self.name = type(module).__name__
        self.parameters, self.size, self.shapes = parameters, size, shapes
        self.starts: list[int] = []
        self.could_be_one, self.holds_state = True, False
        self.place: CodePlace | None = None


class Repeats:
    """The repeated calls of the forward passes of one step."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        """A bit for each parameter, by identity."""
        self._from: dict[int, int] = {}
        """For each address of memory: the bits of the parameters from which its data is
        computed."""
        self._numbers = 0
        """The bits of the parameters from which the program has read numbers."""
        self._calls: dict[int, Calls | None] = {}
        """The repeated calls by identity of the module; None for a module without parameters."""
        self._seen = 0
        self._best: tuple[float, Calls] | None = None

    def see(self, name: str, args: Any, out: Any) -> None:
        """Record an operator of a forward pass after it has run."""
        bits = 0
        for tensor in tensors_in(args):
            bits |= self._bits_of(tensor)
        if name == READS_A_NUMBER:
            self._numbers |= bits
        for tensor in tensors_in(out):
            self._from[address_of(tensor)] = bits

    def called(
        self, module: Any, args: Any, kwargs: dict[str, Any], operators: int, frame: FrameType
    ) -> None:
        """Record the call of a module within the pass. `operators`: how many the pass has run so
        far."""
        self._seen += 1
        given = [args, list(kwargs.values())]
        inputs = list(tensors_in(given))
        if self._seen > MAX_CALLS or not inputs:
            return
        shapes = [tuple(tensor.shape) for tensor in inputs]
        if id(module) not in self._calls:
            self._calls[id(module)] = self._new(module, shapes)
        calls = self._calls[id(module)]
        if calls is None:
            return
        bits = self._numbers
        for tensor in inputs:
            bits |= self._bits_of(tensor)
        if calls.starts and (bits & calls.parameters or shapes != calls.shapes):
            calls.could_be_one = False
        calls.holds_state |= may_hold_state(given)
        if len(calls.starts) == 1:
            calls.holds_state |= self._has_kept(module, calls.parameters)
            calls.place = program_place(frame, "forward")
        calls.starts.append(operators)

    def end_pass(self, operators: int) -> None:
        """Record the end of the pass. `operators`: how many the pass has run."""
        follow = 0
        for calls in self._calls.values():
            if calls is not None and calls.holds_state and len(calls.starts) > 1:
                follow |= calls.parameters
        alike = [
            calls
            for calls in self._calls.values()
            if calls is not None
            and calls.could_be_one
            and not calls.parameters & follow
            and len(calls.starts) >= MIN_CALLS
        ]
        if alike and self._seen <= MAX_CALLS:
            most = max(alike, key=lambda calls: calls.size)
            between = [after - before for before, after in itertools.pairwise(most.starts)]
            ratio = min(1.0, len(most.starts) * median(between) / max(1, operators))
            if self._best is None or ratio > self._best[0]:
                self._best = ratio, most
        self._from, self._calls = {}, {}
        self._numbers = self._seen = 0

    def signals(self) -> Signals:
        """Return two signals of the module whose calls could be one call: the number of these
        calls, and their share of the operators of the forward pass."""
        if self._best is None:
            source = "the forward passes of the counted step: calls that could be one"
            return {CALLS: Signal(0.0, "", source), RATIO: Signal(0.0, "ratio", source)}
        ratio, calls = self._best
        shape = "x".join(map(str, calls.shapes[0]))
        source = (
            f"the forward passes of the counted step: calls of {calls.name} with inputs of"
            f" {shape} that do not depend on each other"
        )
        return {
            CALLS: Signal(float(len(calls.starts)), "", source, calls.place),
            RATIO: Signal(ratio, "ratio", source, calls.place),
        }

    def _new(self, module: Any, shapes: list[Any]) -> Calls | None:
        bits = size = 0
        for parameter in parameters_of(module):
            bits |= self._bit(parameter)
            size += parameter.numel()
        return Calls(module, bits, size, shapes) if bits else None

    def _has_kept(self, module: Any, parameters: int) -> bool:
        """Return whether a module, or one in it, holds a tensor that comes from these parameters,
        as a recurrent module that keeps its state in an attribute."""
        return any(
            self._bits_of(tensor) & parameters
            for inner in inner_modules([module])
            for name, value in ask(inner, "__dict__", {}).items()
            if name != "_parameters"
            for tensor in tensors_in(value)
        )

    def _bit(self, parameter: Any) -> int:
        return self._bits.setdefault(id(parameter), 1 << len(self._bits))

    def _bits_of(self, tensor: Any) -> int:
        return self._bits.get(id(tensor), 0) | self._from.get(address_of(tensor), 0)


def address_of(tensor: Any) -> int:
    """Return the address of the memory of a tensor; 0 if the tensor has no memory."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:  # NotImplementedError too
        return 0


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in plain memory in a value, also inside tuples, lists and dictionaries. The
    function calls no method of the program's own objects, containers or tensors."""
    if type(value) in (tuple, list):
        for item in value:
            yield from tensors_in(item)
    elif type(value) is dict:
        yield from tensors_in(list(value.values()))
    elif is_plain(value):
        yield value


def may_hold_state(value: Any) -> bool:
    """Return whether a value contains an object of the program or of a library, such as a cache of
    keys and values. The agent does not know what an earlier call has left in such an object."""
    if type(value) in (tuple, list):
        return any(map(may_hold_state, value))
    if type(value) is dict:
        return may_hold_state(list(value.values()))
    return not (is_plain(value) or type(value) in PLAIN)
