"""Find work of the passes whose result nobody needs, in the operators of the counted step.

Each kind of such work has its FLOPs and the program's line with most of them. Values are read only
of tensors in the memory of the host: nothing here waits for a GPU.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ...loop import Signals
from ...protocol import CodePlace, Signal
from ..guard import ask
from ..recorder import get_ident
from ..structure import parameters_of
from ..watch import program_place, watch
from .repeats import MIN_CALLS, PLAIN, address_of, tensors_in
from .tables import is_plain

# --- kinds of spare work, and their sources -------------------------------------------------------

SAME_PASS, AGAIN, UNUSED = "same_pass", "backward_again", "unused_gradients"
ZEROS, UNLABELLED, PADDING = "zeros", "unlabelled", "padding"
SOURCES = {
    SAME_PASS: "FLOPs of passes of a module with the inputs of an earlier pass of the step",
    AGAIN: "FLOPs of backward passes in operators that an earlier backward pass has gone through",
    UNUSED: "FLOPs of backward passes that lead only to gradients that no optimizer uses",
    ZEROS: "FLOPs of products with a matrix of which nearly all entries are zero",
    UNLABELLED: "FLOPs of the scores for entries whose label the loss ignores",
    PADDING: "FLOPs of products of entries whose id only fills the rows of the batch",
}
OF_FORWARD = (ZEROS, UNLABELLED, PADDING)
"""Kinds whose FLOPs are counted in the forward passes. Their share of the backward passes is the
same."""
OF_NODES = (SAME_PASS, AGAIN, UNUSED)
"""Kinds that are told by the numbers of the nodes of graphs."""
LOOP_CALLS, LOOP_RATIO = "gradient_loop.calls", "gradient_loop.operators_ratio"

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1}
"""Products of matrices, with the place of the left operand."""
LOSSES = ("nll_loss_backward", "nll_loss2d_backward")
MIN_COLUMNS = 256
"""Columns from which on the zeros of a matrix are counted: a few classes as one-hot vectors cost
little."""
MAX_FILLED = 1 / 64
"""The largest share of entries that are not zero, in a matrix whose product is a lookup."""
SAMPLED_ROWS = 16
MIN_LENGTH = 8
"""Ids in a row, from which on a run of one id at its end is padding."""
MAX_ELSEWHERE = 0.05
"""The most other places with the id of the padding, as a share of the padding. Some texts hold the
same id as a mark between sentences."""
ALIKE = 0.8
"""The share of its FLOPs that a call of `torch.autograd.grad` has in the operators of the first
call from the same line, if both differentiate one result."""
USED, FREE = 1, 2
"""Bits of gradients that somebody may use, and of parameters that are in no optimizer. The
optimizers have the bits after these."""
ACCUMULATES = "torch::autograd::AccumulateGrad"
NO_NUMBER = 2**63
"""From here on, the number of a node says nothing: all nodes that add gradients have the same."""


class ForwardPass:
    """A pass of a module. `inputs`: what it got. `first`, `end`: the numbers of its nodes. `twin`:
    an earlier pass that got the same. `work`: a number for its operators, with the numbers and the
    tensors from outside of the pass that they read."""

    def __init__(self, inputs: Any, tensors: Iterable[Any], place: CodePlace | None) -> None:
        self.inputs, self.place = inputs, place
        parameter = sys.modules["torch"].nn.Parameter  # see `BackwardPass`
        self.tensors = [weakref.ref(each) for each in tensors if type(each) is not parameter]
        self.first = self.end = _next_number()
        self.flops = self.backward_flops = 0.0
        self.random = False
        self.twin: ForwardPass | None = None
        self.work = 0
        self._made = set[int]()
        """The addresses of the results of the operators."""

    @property
    def is_alive(self) -> bool:
        """Whether all tensors that the pass got still exist: no other tensor has their identity."""
        return all(tensor() is not None for tensor in self.tensors)

    def note(self, name: str, args: Any, out: Any, flops: float) -> None:
        """Add an operator to the work of the pass."""
        read = [
            (address, _version(tensor))
            for tensor in tensors_in(args)
            if (address := address_of(tensor)) not in self._made
        ]
        plain = [argument for argument in args if type(argument) in PLAIN]
        self.work = hash((self.work, name, flops, *read, *plain))
        self._made.update(map(address_of, tensors_in(out)))

    def computes_again(self, twin: ForwardPass) -> bool:
        """Return whether the pass does the work of an earlier pass. A module may do other work with
        the same inputs: its adapters are off, or it keeps a state. Two passes without gradients
        may differ in weights that the program moves in a way that is not seen."""
        has_gradients = bool(self.backward_flops or twin.backward_flops)
        return has_gradients and self.work == twin.work and not (self.random or twin.random)


class BackwardPass:
    """A backward pass. `adds`: it adds its gradients to those of the parameters. `masks`: for each
    node, the bits of the gradients to which it leads. `leaves`: a parameter for each bit. `flops`:
    of each node. `first`: the number of the first node that the pass makes, if it can be
    differentiated again. `used`, `dropped`: bits of gradients that an optimizer has used, or that
    the program has dropped before. `free`: the parameters in no optimizer, with their versions.

    The references to parameters are strong, for this one step: torch.utils.swap_tensors refuses a
    tensor with a weak reference."""

    def __init__(self, adds: bool, place: CodePlace | None) -> None:
        self.adds, self.place = adds, place
        self.masks: dict[int, int] = {}
        self.leaves: dict[int, Any] = {}
        self.free: list[tuple[Any, Any]] = []
        self.flops = Counter[int]()
        self.first = _next_number()
        self.operators = self.used = self.dropped = 0

    @property
    def has_moved_free(self) -> bool:
        """Whether the program has changed a parameter that is in no optimizer."""
        return any(_version(leaf) != version for leaf, version in self.free)


class GradientLoop:
    """The calls of `torch.autograd.grad` in one line that differentiate one result. `operators`:
    theirs, and those of the backward passes through the nodes that they have made. `made`: the
    numbers of these nodes."""

    def __init__(self) -> None:
        self.calls = self.operators = 0
        self.made: list[range] = []
        self.first = set[int]()
        """The nodes of the first call."""

    def add(self, call: BackwardPass) -> None:
        """Add a call, if it goes through the operators of the first call."""
        self.first = self.first or set(call.flops)
        alike = sum(flops for node, flops in call.flops.items() if node in self.first)
        if call.flops and alike >= ALIKE * call.flops.total():
            self.calls += 1
            self.operators += call.operators
            self.made.append(range(call.first, _next_number()))


class SpareWork:
    """The spare work of one step."""

    def __init__(self) -> None:
        self._thread, self._is_one_thread = get_ident(), True
        """Whether all nodes are made in one thread. Each thread numbers its nodes by itself."""
        self._node = getattr(sys.modules["torch"]._C, "_current_autograd_node", lambda: None)
        self._flops = Counter[str]()
        self._places: defaultdict[str, Counter[CodePlace | None]] = defaultdict(Counter)
        self._forward_flops = 0.0
        self._passes: list[ForwardPass] = []
        self._by_inputs: dict[Any, ForwardPass] = {}
        """The passes since the last backward pass, by what they got."""
        self._numbers: dict[int, int] = {}
        """A number for each optimizer, by identity."""
        self._backwards: list[BackwardPass] = []
        self._pass: ForwardPass | None = None
        self._backward: BackwardPass | None = None
        self._walked = set[int]()
        """The nodes of backward passes whose gradients have been added up since the last update."""
        self._states: dict[int, Any] = {}
        """By bit: the state of a gradient after the last backward pass that has added to it."""
        self._loops: defaultdict[CodePlace | None, GradientLoop] = defaultdict(GradientLoop)
        self._padded: dict[int, tuple[float, CodePlace | None]] = {}
        """By number of ids: the share of ids that fill up rows, and the line that looks them up."""
        self._products: dict[int, tuple[float, CodePlace | None]] = {}
        """By number of results: the FLOPs and the line of the last such product."""

    # --- passes -----------------------------------------------------------------------------------

    def begin_pass(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """The forward pass of a module begins."""
        weights = list(parameters_of(module))
        inputs = _identity([args, kwargs, weights])
        if inputs is not None:
            inputs = id(module), ask(module, "training"), inputs
        tensors = tensors_in([args, kwargs, weights]) if inputs is not None else ()
        place = program_place(sys._getframe(1), "forward")
        self._pass = begun = ForwardPass(inputs, tensors, place)
        self._passes.append(begun)
        if inputs is not None:
            earlier = self._by_inputs.setdefault(inputs, begun)
            if earlier.is_alive:
                begun.twin = earlier if earlier is not begun else None
            else:
                self._by_inputs[inputs] = begun

    def begin_backward(self, nodes: list[Any], adds: bool) -> None:
        """A backward pass begins. `nodes`: those of its graph."""
        self._settle()
        place = program_place(sys._getframe(1), "backward")
        self._backward = begun = BackwardPass(adds, place)
        if adds:
            self._find_leaves(begun, nodes)

    def end_pass(self) -> None:
        """The pass under way ends."""
        if self._pass is not None:
            self._pass.end, self._pass = _next_number(), None
        ended, self._backward = self._backward, None
        if ended is None:
            return
        if not ended.adds:
            self._loops[ended.place].add(ended)
            return
        self._walked |= set(ended.flops)
        self._backwards.append(ended)
        self._states |= {bit: _state(leaf) for bit, leaf in ended.leaves.items()}
        self._by_inputs.clear()  # the program may change parameters in a way that is not seen

    def stepped(self, optimizer: Any) -> None:
        """An optimizer uses its gradients."""
        bit, under_way = self._bit(optimizer), [self._backward] if self._backward else []
        for backward in (*self._backwards, *under_way):
            # else the program has read the gradients before it has dropped them
            if bit in backward.leaves and not backward.dropped & bit:
                backward.used |= bit
        self._walked.clear()

    def _settle(self) -> None:
        """Find out which gradients the program has dropped, and whether it has changed some."""
        for backward in self._backwards:
            for bit, leaf in backward.leaves.items():
                state = _state(leaf)
                if state is None and not backward.used & bit:
                    backward.dropped |= bit
                if state != self._states[bit]:
                    self._walked.clear()

    def _find_leaves(self, backward: BackwardPass, nodes: list[Any]) -> None:
        """Find the gradients to which each node of a graph leads. The number of a node is larger
        than the numbers of the nodes to which it leads."""
        bits = {
            id(parameter): self._bit(optimizer)
            for optimizer in watch.alive(watch.optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        parameter_type = sys.modules["torch"].nn.Parameter
        for node in sorted(nodes, key=_number):
            mask = 0
            for after, _ in node.next_functions:
                if after is None:
                    continue
                if after.name() != ACCUMULATES:
                    mask |= backward.masks.get(_number(after), USED)
                    continue
                leaf = after.variable
                bit = bits.get(id(leaf), FREE if type(leaf) is parameter_type else USED)
                # a class of the program may give its gradient in another way
                bit = bit if is_plain(leaf) else USED
                mask |= bit
                if bit > FREE:
                    backward.leaves.setdefault(bit, leaf)
                elif bit == FREE:
                    backward.free.append((leaf, _version(leaf)))
            backward.masks[_number(node)] = mask

    def _bit(self, optimizer: Any) -> int:
        """Return the bit of an optimizer."""
        return 4 << self._numbers.setdefault(id(optimizer), len(self._numbers))

    # --- operators --------------------------------------------------------------------------------

    def see(
        self, operator: Any, args: Any, kwargs: dict[str, Any], out: Any, flops: float, frame: Any
    ) -> None:
        """Record an operator of torch that has run. `frame`: that of its caller."""
        name = operator._overloadpacket.__name__
        if self._backward is not None:
            self._see_backward(self._backward, name, args, flops)
            return
        self._forward_flops += flops
        if self._pass is not None:
            self._pass.flops += flops
            if self._pass.inputs is not None:
                self._pass.random |= _is_random(operator, args, kwargs)
                self._pass.note(name, args, out, flops)
        if name == "embedding":
            self._note_ids(args[1], frame)
        elif name == "_pack_padded_sequence":
            self._padded.clear()  # an operator that leaves out the padding
        elif flops and name in PRODUCTS:
            self._note_product(args[PRODUCTS[name]], out, flops, frame)

    def _see_backward(self, backward: BackwardPass, name: str, args: Any, flops: float) -> None:
        backward.operators += 1
        if get_ident() != self._thread and sys.modules["torch"].is_grad_enabled():
            self._is_one_thread = False
        if name in LOSSES:
            self._note_labels(args)
        if (node := self._node()) is None or (number := _number(node)) >= NO_NUMBER:
            return
        for loop in self._loops.values():
            loop.operators += any(number in made for made in loop.made)
        if not flops:
            return
        backward.flops[number] += flops  # type: ignore[assignment]
        if backward.adds and number in self._walked:
            self._add(AGAIN, flops, backward.place)
        for forward in self._passes:
            if forward.first <= number < forward.end:
                forward.backward_flops += flops

    def _note_product(self, left: Any, out: Any, flops: float, frame: FrameType) -> None:
        place = program_place(frame, "forward")
        self._products[out.numel()] = flops, place
        if _is_mostly_zero(left):
            self._add(ZEROS, flops, place)
        rows = left.numel() // max(1, left.shape[-1])
        if rows in self._padded:
            filled, place = self._padded[rows]
            self._add(PADDING, filled * flops, place)

    def _note_ids(self, ids: Any, frame: FrameType) -> None:
        readable = is_plain(ids) and ids.device.type == "cpu" and ids.dim() == 2
        if readable and ids.shape[1] >= MIN_LENGTH and (filled := padded_ratio(ids)):
            self._padded[ids.numel()] = filled, program_place(frame, "forward")

    def _note_labels(self, args: Any) -> None:
        """Read how many entries have a label: torch has counted them for the loss."""
        scores, labels, weight, reduction, counted = args[1], args[2], args[3], args[4], args[6]
        if weight is None and reduction and counted.device.type == "cpu" and labels.numel():
            flops, place = self._products.get(scores.numel(), (0.0, None))
            self._add(UNLABELLED, flops * (1 - float(counted) / labels.numel()), place)

    def _add(self, kind: str, flops: float, place: CodePlace | None) -> None:
        self._flops[kind] += flops  # type: ignore[assignment]
        self._places[kind][place] += flops  # type: ignore[assignment]

    # --- the result -------------------------------------------------------------------------------

    def signals(self, flops: float, operators: int) -> Signals:
        """Return the share of each kind in the FLOPs of the passes, and the calls of the loop of
        gradients with most operators. `flops`, `operators`: those of all passes."""
        self._settle()
        for forward in self._passes:
            twin = forward.twin
            if twin is not None and forward.computes_again(twin):
                again = min(forward.backward_flops, twin.backward_flops)
                self._add(SAME_PASS, forward.flops + again, forward.place)
        for backward in self._backwards:
            if backward.used:  # else the optimizers hold other tensors than the model
                unused = backward.dropped | (0 if backward.has_moved_free else FREE)
                spare = sum(
                    flops
                    for node, flops in backward.flops.items()
                    if not backward.masks.get(node, USED) & ~unused
                )
                self._add(UNUSED, spare, backward.place)
        signals: Signals = {}
        kinds = (*OF_FORWARD, *(OF_NODES if self._is_one_thread else ()))
        for kind, spare in (+self._flops).items():
            if kind not in kinds:
                continue
            whole = self._forward_flops if kind in OF_FORWARD else flops
            [(place, _)] = self._places[kind].most_common(1)
            ratio = min(1.0, spare / whole) if whole else 0.0
            source = f"operators of the counted step: {SOURCES[kind]}"
            signals[f"spare.{kind}_ratio"] = Signal(ratio, "ratio", source, place)
        place, loop = max(
            self._loops.items(), key=lambda entry: entry[1].operators, default=(None, None)
        )
        if loop is not None and loop.calls >= MIN_CALLS:
            source = "the counted step: calls of torch.autograd.grad that differentiate one result"
            ratio = min(1.0, loop.operators / max(1, operators))
            signals[LOOP_CALLS] = Signal(float(loop.calls), "", source, place)
            signals[LOOP_RATIO] = Signal(ratio, "ratio", source, place)
        return signals


# --- what a pass gets, and where its gradients go -------------------------------------------------


def _identity(value: Any) -> Any:
    """Return what two passes must have in common to give one result; None if that is not known. The
    function calls no method of the program's own objects."""
    if type(value) in (tuple, list):
        parts = tuple(map(_identity, value))
        return None if None in parts else parts
    if type(value) is dict:
        return _identity([part for item in value.items() for part in item])
    if is_plain(value):
        version = _version(value)
        return None if version is None else (id(value), version)
    return (value,) if type(value) in PLAIN else None


def _state(parameter: Any) -> Any:
    """Return what changes where the program changes or drops a gradient; None without a
    gradient."""
    gradient = ask(parameter, "grad")
    return None if gradient is None else (id(gradient), _version(gradient))


def _version(tensor: Any) -> Any:
    """Return a number that changes where the program changes a tensor; None if not known."""
    return ask(tensor, "_version")


def _number(node: Any) -> int:
    """Return the number of a node, in the order in which the nodes were made."""
    return int(node._sequence_nr())


def _next_number() -> int:
    return int(sys.modules["torch"]._C._autograd._get_sequence_nr())


# --- values in the memory of the host -------------------------------------------------------------


def _is_random(operator: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether an operator draws random numbers. Attention does so only with dropout."""
    if sys.modules["torch"].Tag.nondeterministic_seeded not in operator.tags:
        return False
    return bool(argument_of(operator, args, kwargs, "dropout_p", 1.0))


def argument_of(
    operator: Any, args: Any, kwargs: dict[str, Any], name: str, default: Any = None
) -> Any:
    """Return an argument of a call of an operator by its name; `default` if the operator has no
    such parameter."""
    for place, parameter in enumerate(operator._schema.arguments):
        if parameter.name == name:
            given = args[place] if place < len(args) else kwargs.get(name)
            return parameter.default_value if given is None else given
    return default


def _is_mostly_zero(matrix: Any) -> bool:
    """Return whether nearly all entries of a matrix on the host are zero, as in one-hot vectors. A
    few rows are read."""
    columns = matrix.shape[-1]
    if columns < MIN_COLUMNS or not is_plain(matrix) or matrix.device.type != "cpu":
        return False
    rows = matrix.detach() if matrix.dim() == 2 else matrix.detach()[0]
    rows = rows[:: max(1, len(rows) // SAMPLED_ROWS)]
    filled = int(rows.count_nonzero())
    return bool(len(rows) <= filled <= MAX_FILLED * rows.numel())


def padded_ratio(ids: Any) -> float:
    """Return the share of ids in runs of one id at the ends, or at the begins, of rows. Rows with
    one id only do not count: they are no padded text. An id that is also in other places has a
    meaning: a wall of a map, a usual value of a column."""
    length, most = ids.shape[1], 0.0
    for rows in (ids, ids.flip(1)):
        edge = rows[:, -1]
        fills = rows == edge.mode().values
        run = fills.flip(1).long().cumprod(1).sum(1)
        filled = float((run * (run < length) * (run > 1)).sum())
        elsewhere = float(fills.sum() - run.sum())
        if elsewhere <= MAX_ELSEWHERE * filled:
            most = max(most, filled / ids.numel())
    return most
