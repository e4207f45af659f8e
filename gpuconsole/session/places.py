"""The places of the program that take the time of a step, from samples of the training thread's
stack."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Container, Iterable
from weakref import WeakKeyDictionary

import msgspec

from gpuconsole.model.finding import CodePlace, Signal
from gpuconsole.model.stacks import (
    ANOMALY,
    NATIVE,
    PYTHON,
    THREAD,
    WAITS,
    Place,
    StackSample,
)
from gpuconsole.wire.events import Stacks

MESSAGES = 150
"""Messages kept: five minutes."""
MIN_SAMPLES = 50
"""Below, a share of 10 % has an error of more than 8 points."""
MAX_PLACES = 10
ONE_CALLER = 0.8
"""Share of a function's samples that one line must have called, to be named as its caller."""
MUCH = 0.25
"""The least share of a kind of side work that lines outside of the loop must have. Only then is one
of these lines named."""
MAX_OF_EVALUATION = 2.0
"""The weight of samples in passes without gradients over that of evaluation in the breakdown, up to
which the passes are those of an evaluation."""
BETWEEN = "between"
SCRIPT = ("feed", BETWEEN)
"""The parts of a step between the segments, in which the program's own lines run; after the model's
call the loss belongs to them where it is not torch."""
MIN_REST_SHARE = 1 / 3
"""Share of the time after a pass without functions of torch from which on it counts as the
program's own: below, it is the Python between two functions."""
PASSES = ("forward", "no_grad", "loss", "backward", "clip")
"""The parts of a step in which a function of the program may be what is slow."""
SIDE_WORK = {
    "comm": "collectives",
    "logging": "log records",
    "checkpoint": "checkpoints",
    "eval": "passes in eval mode",
}
"""The parts of a step that are not passes, with their words for the source of a signal."""
ISSUING = ("feed", "forward", "no_grad", "loss", "clip", "optimizer", BETWEEN)
"""The parts of a step in which the training thread issues work by itself. In the backward pass it
waits for a thread of torch."""
MODULES = ("forward", "no_grad")
"""The parts among PASSES in which modules call modules."""
MIN_PASSES = 1.5
"""From this mean number of passes per step on, a step has time between two passes."""
LATE = 0.05
"""The share of a part's samples that may be late. A late sample has the part at its due time, but a
line that runs after that part. In a loop with steps of 8 ms, 0.5 to 2 % were late."""
WeighedLine = tuple[tuple[str, str], int, float]
"""The file and the function of a line, its number, and the weight of a sample there."""
ELSEWHERE = 0.05
"""From this share of its samples in other parts of a step on, a function is one that contains these
parts, for example the training loop."""


class StackRecord:
    """The samples of the leading process."""

    def __init__(self) -> None:
        self._messages: deque[Stacks] = deque(maxlen=MESSAGES)
        self._version = 0
        """The number of messages so far."""

    def add(self, event: Stacks) -> None:
        self._messages.append(event)
        self._version += 1

    def places(self, begun: float) -> list[Place]:
        """The places that the messages after the time `begun` show."""
        memo, key = _memo.get(self), (self._version, begun)
        if memo is None or memo[0] != key:
            memo = _memo[self] = key, places_of(self.since(begun))
        return memo[1]

    def since(self, begun: float) -> list[StackSample]:
        """Return the samples of the training thread in the messages after the time `begun`, with
        their parts as `with_parts` knows them."""
        return with_parts(
            [
                sample
                for event in self._messages
                if event.t > begun
                for sample in event.samples
                if sample.part != THREAD
            ]
        )

    def of_others(self, begun: float) -> list[StackSample]:
        """The samples of the program's other threads in the messages after the time `begun`."""
        return [
            sample
            for event in self._messages
            if event.t > begun
            for sample in event.samples
            if sample.part == THREAD
        ]

    def between(self, begun: float, ended: float) -> list[StackSample]:
        """The samples of the messages after the time `begun`, up to the time `ended`."""
        return [
            sample
            for event in self._messages
            if begun < event.t <= ended
            for sample in event.samples
        ]

    @property
    def first_t(self) -> float:
        """The time of the first message that is kept; infinite without one."""
        return self._messages[0].t if self._messages else float("inf")


_memo: WeakKeyDictionary[StackRecord, tuple[tuple[int, float], list[Place]]] = WeakKeyDictionary()
"""The last places of each record, with what they were made from: a view is made more often than a
message comes."""


def with_parts(samples: list[StackSample]) -> list[StackSample]:
    """Return the samples; those between two steps have the part in which the same lines run in
    other samples. Most steps of a few ms are only counted, and all their samples lie between two
    steps. A line that really runs there is in another part only in samples that came late."""
    seen: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for sample in samples:
        parts = seen[tuple(sample.lines)]
        parts[sample.part] = parts.get(sample.part, 0.0) + sample.weight
    part_of = {}
    for lines, parts in seen.items():
        between = parts.pop(BETWEEN, 0.0)
        named = sum(parts.values())
        if lines and between and named > 2 * LATE * (between + named):
            part_of[lines] = max(parts, key=parts.__getitem__)
    return [
        msgspec.structs.replace(sample, part=part_of[lines])
        if sample.part == BETWEEN and (lines := tuple(sample.lines)) in part_of
        else sample
        for sample in samples
    ]


def signals_of(samples: list[StackSample], loss_ratio: float = 0.0) -> dict[str, Signal]:
    """The share of samples in the script's own lines outside of named phases, the function with
    most of them, and how much of its time that function computes; empty with too few samples.
    `loss_ratio`: the share of a step in the loss. Samples between two calls of the model do not
    belong to the loss."""
    total = sum(sample.weight for sample in samples)
    if total < MIN_SAMPLES:
        return {}
    after_pass = sum(sample.weight for sample in samples if sample.part == "loss") / total
    is_loss = torch_ratio(samples) > 1 - MIN_REST_SHARE or loss_ratio >= after_pass / 2
    parts = SCRIPT if is_loss else (*SCRIPT, "loss")
    whole = {sample.lines[0] for sample in samples if sample.part == "optimizer" and sample.lines}
    own = [
        sample
        for sample in samples
        if sample.part in parts
        and sample.lines
        and not (sample.part == "loss" and is_torch(sample))
        # Python of a framework that runs the whole loop, as in `trainer.fit()`
        and not (sample.callee and sample.lines[0] in whole)
    ]
    most = _largest(_with_called(own, samples, total))
    source = f"{total:.0f} stack samples of ordinary steps"
    signals = {
        "stack.script_ratio": Signal(
            sum(sample.weight for sample in own) / total,
            "ratio",
            f"{source}: in the script, outside of named phases",
        ),
        "stack.line_ratio": Signal(
            most.share_ratio if most else 0.0,
            "ratio",
            f"{source}: in the function with most of them",
            most.code if most else None,
        ),
    }
    anomaly = sum(sample.weight for sample in samples if sample.callee == ANOMALY)
    signals["stack.anomaly_ratio"] = Signal(
        anomaly / total, "ratio", f"{source}: in anomaly mode's stack traces of operators"
    )
    signals |= _function_signals(samples, [part for part in PASSES if part not in parts], total)
    signals |= _outside_signals(samples, total)
    if most:
        source = f"{most.samples} stack samples in this function: whether the thread ran"
        signals["stack.line_cpu_ratio"] = Signal(1 - most.waits_ratio, "ratio", source)
    return signals


def by_breakdown(
    found: dict[str, Signal], samples: list[StackSample], shares: dict[str, float]
) -> dict[str, Signal]:
    """Return the share of a step in the function with most of the time: the function's share of the
    samples in a part, times the measured share of this part. `shares`: the measured share of each
    usable part. Samples alone give Python too little time and operators of torch too much, because
    Python code releases the interpreter's lock late. Empty if the part is not measured, or if
    passes without gradients may belong to it."""
    signal = found.get("stack.function_ratio")
    part = signal.place.part if signal is not None and signal.place is not None else ""
    if signal is None or part not in shares or any(one.part == "no_grad" for one in samples):
        return {}
    total = sum(sample.weight for sample in samples)
    inside = sum(sample.weight for sample in samples if sample.part == part) / total
    share = min(1.0, signal.value / inside) * shares[part]
    source = f"{signal.source}; the part by the step breakdown"
    return {"stack.function_ratio": dataclasses.replace(signal, value=share, source=source)}


def thread_signals(others: list[StackSample], training: list[StackSample]) -> dict[str, Signal]:
    """How often another thread of the program was in Python, or waited for the interpreter's lock
    to go on, for each sample of the training thread; with its line. Empty with too few samples."""
    total = sum(sample.weight for sample in training)
    if total < MIN_SAMPLES:
        return {}
    inside = [sample for sample in others if sample.kind == PYTHON]
    by_function = sorted(_functions(inside, total), key=lambda place: -place.share_ratio)
    share = min(1.0, sum(sample.weight for sample in inside) / total)
    return {
        "stack.thread_ratio": Signal(
            share,
            "ratio",
            f"{total:.0f} stack samples: another thread in Python",
            msgspec.structs.replace(by_function[0], part="").code if by_function else None,
        )
    }


def side_work_signals(samples: list[StackSample], eval_ratio: float = 0.0) -> dict[str, Signal]:
    """Return the share of the samples in each kind of side work, with the line that has most of
    these samples; empty with too few samples. Side work may be rare, so `samples` holds all kept
    samples. The line that runs the whole loop (`trainer.fit`) is named only if no other line has
    much of the time. `eval_ratio`: the share of evaluation in the breakdown of the steps."""
    total = sum(sample.weight for sample in samples)
    if total < MIN_SAMPLES:
        return {}
    signals, source = {}, f"{total:.0f} stack samples of ordinary steps"
    loop = {
        sample.lines[0]
        for sample in samples
        if sample.part == "optimizer" and sample.lines and sample.callee
    }
    for part, words in SIDE_WORK.items():
        inside = [sample for sample in samples if sample.part == part and sample.lines]
        if part == "eval" and not inside:
            inside = _evaluating(samples, eval_ratio * total)
        if inside:
            weight = sum(sample.weight for sample in inside)
            own = [sample for sample in inside if sample.lines[0] not in loop]
            if sum(sample.weight for sample in own) < MUCH * weight:
                own = inside
            signals[f"stack.{part}_ratio"] = Signal(
                weight / total, "ratio", f"{source}: in {words}", _heaviest_line(own)
            )
    return signals


def _evaluating(samples: list[StackSample], most: float) -> list[StackSample]:
    """Return the samples in passes without gradients, and in the other work of the functions that
    only make such passes: they load batches, and sum up results. Return none if the passes have
    much more weight than `most`, the weight of evaluation: they are those of a teacher."""
    without = [sample for sample in samples if sample.part == "no_grad" and sample.lines]
    if sum(sample.weight for sample in without) > MAX_OF_EVALUATION * most:
        return []
    training = {
        _function(line)
        for sample in samples
        if sample.part in ("backward", "optimizer")
        for line in sample.lines
    }
    functions = {_function(line) for sample in without for line in sample.lines} - training
    return [
        sample
        for sample in samples
        if sample.part in ("no_grad", "data_wait", *SCRIPT)
        and any(_function(line) in functions for line in sample.lines)
    ] or without


def _function_signals(
    samples: list[StackSample], parts: list[str], total: float
) -> dict[str, Signal]:
    """The function of the program with most of the time in these parts, without that in functions
    of torch: its share of a step, and how much of this time is Python, and how much is waiting."""
    own = [
        sample
        for sample in samples
        if sample.part in parts and not sample.callee.startswith("torch.")
    ]
    alone = [sample for sample in own if sample.part in MODULES]  # a module calls all modules in it
    functions = _functions(alone, total) + _with_called(
        [sample for sample in own if sample.part not in MODULES], samples, total
    )
    largest = _largest(functions)
    source = f"{total:.0f} stack samples of ordinary steps"
    inside = f"{largest.samples if largest else 0} stack samples in this function"
    python = 1 - largest.waits_ratio - largest.native_ratio if largest else 0.0
    without = [sample for sample in samples if sample.part == "no_grad" and sample.lines]
    callers = [
        msgspec.structs.replace(sample, lines=(sample.lines[1:] or sample.lines)[:1])
        for sample in without
    ]
    return {
        "stack.no_grad_ratio": Signal(
            sum(sample.weight for sample in without) / total,
            "ratio",
            f"{source}: in passes without gradients; the line that calls most of them",
            _heaviest_line(callers) if callers else None,
        ),
        "stack.function_ratio": Signal(
            largest.share_ratio if largest else 0.0,
            "ratio",
            f"{source}, without functions of torch: in the function with most of them",
            largest.code if largest else None,
        ),
        "stack.function_python_ratio": Signal(python, "ratio", inside),
        "stack.function_waits_ratio": Signal(
            largest.waits_ratio if largest else 0.0, "ratio", inside
        ),
    }


def _outside_signals(samples: list[StackSample], total: float) -> dict[str, Signal]:
    """The share of the samples in which the thread runs or waits outside of Python, in the one line
    of the program that has most of them: an operator of torch that this line calls. On a GPU
    operators return at once, unless they wait for the GPU."""
    outside = [
        s
        for s in samples
        if s.part in ISSUING
        and s.kind != PYTHON
        and s.lines
        and (not s.callee or s.callee.startswith("torch."))
    ]
    if not outside:
        return {
            "stack.outside_ratio": Signal(
                0.0,
                "ratio",
                f"{total:.0f} stack samples of ordinary steps: outside of Python in one line",
            )
        }
    line, weight = _heaviest((sample.lines[0], sample.weight) for sample in outside)
    place = _heaviest_line([sample for sample in outside if sample.lines[0] == line])
    source = (
        f"{total:.0f} stack samples of ordinary steps: outside of Python in one line of the program"
    )
    return {"stack.outside_ratio": Signal(weight / total, "ratio", source, place)}


def between_passes(
    after: Iterable[StackSample], samples: Iterable[StackSample], passes: float
) -> list[StackSample]:
    """Return the samples of `after` that may lie between two calls of the model. `after`: the
    samples after a call of the model. `passes`: the passes of a step. If the program calls the
    model in at least this number of lines, code below the last of these lines is the loss, and its
    samples are left out."""
    steps = {
        _function(line) for sample in samples if sample.part == "backward" for line in sample.lines
    }
    forward = [
        (*call, sample.weight)
        for sample in samples
        if sample.part == "forward" and (call := _common(sample, steps)) is not None
    ]
    if passes < MIN_PASSES or len({(key, number) for key, number, _ in forward}) < round(passes):
        return list(after)
    last = _last_lines(forward)
    places = ((sample, _common(sample, steps)) for sample in after)
    return [sample for sample, place in places if place is None or place[1] <= last[place[0]]]


def after_step_ratio(samples: Iterable[StackSample], least: float) -> float:
    """Return the share of the time between an optimizer step and the next pass that belongs to
    lines below the step. Line and step are compared in the innermost function of the program that
    both stacks have in common. The other lines make the next batch. Return 0 for fewer than `least`
    samples."""
    in_passes, in_steps = list[WeighedLine](), list[WeighedLine]()
    between = list[StackSample]()
    for sample in samples:
        if sample.part == "between":
            between.append(sample)
        elif sample.part in (
            "forward",
            "backward",
            "clip",
            "optimizer",
        ) and not sample.callee.endswith(".zero_grad"):
            lines = in_passes if sample.part == "forward" else in_steps
            for file, number, function in map(_parts, sample.lines):
                lines.append(((file, function), number, sample.weight))
    passes, steps = _last_lines(in_passes), _last_lines(in_steps)
    below = total = 0.0
    for sample in between:
        if (common := _common(sample, steps)) is not None:
            key, number = common
            total += sample.weight
            below += sample.weight if number > max(steps[key], passes[key]) else 0.0
    return below / total if total >= least else 0.0


def _last_lines(lines: Iterable[WeighedLine]) -> defaultdict[tuple[str, str], int]:
    """Return the last of these lines in each function; 0 for other functions. Ignore the last lines
    if they have at most LATE of the weight in a function."""
    weights: defaultdict[tuple[str, str], defaultdict[int, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for key, number, weight in lines:
        weights[key][number] += weight
    last = defaultdict[tuple[str, str], int](int)
    for key, of_line in weights.items():
        spare = LATE * sum(of_line.values())
        for number in sorted(of_line, reverse=True):
            last[key], spare = number, spare - of_line[number]
            if spare < 0:
                break
    return last


def torch_ratio(samples: Iterable[StackSample]) -> float:
    """The share of the time from the end of the model's call to the backward pass that functions of
    torch take; 1 where it is not known."""
    after = [sample for sample in samples if sample.part == "loss"]
    total = sum(sample.weight for sample in after)
    return sum(sample.weight for sample in after if is_torch(sample)) / total if total else 1.0


def is_torch(sample: StackSample) -> bool:
    """Whether the thread is in a function of torch, or runs an operator that the program's line
    calls."""
    return sample.callee.startswith("torch.") or (sample.kind == NATIVE and not sample.callee)


def places_of(samples: list[StackSample]) -> list[Place]:
    """The functions of the program with the largest shares of the time of a step, each within one
    part of it."""
    total = sum(sample.weight for sample in samples)
    if total < MIN_SAMPLES:
        return []
    return sorted(_functions(samples, total), key=lambda place: -place.share_ratio)[:MAX_PLACES]


def growing(
    early: list[StackSample], late: list[StackSample], early_s: float, late_s: float
) -> tuple[Place, float] | None:
    """The function of the program whose time in a step grows most, as the later samples show it,
    and the seconds by which it grows. None with too few samples, or where no function grows.
    `early_s`, `late_s`: the time of a step when the samples were taken."""
    totals = [sum(sample.weight for sample in samples) for samples in (early, late)]
    if min(totals) < MIN_SAMPLES:
        return None
    before = {_key(place): place.share_ratio * early_s for place in _functions(early, totals[0])}
    grown = [
        (place.share_ratio * late_s - before.get(_key(place), 0.0), place)
        for place in _functions(late, totals[1])
    ]
    seconds, place = max(grown, key=lambda entry: entry[0], default=(0.0, None))
    return (place, seconds) if place is not None and seconds > 0 else None


def _with_called(
    samples: Iterable[StackSample], every: Iterable[StackSample], total: float
) -> list[Place]:
    """Return the functions of the program, each within one part of a step, with the time of the
    functions that it calls. Leaves out functions that contain several parts of a step (see
    ELSEWHERE). `every`: the samples of all parts. `total`: the number of samples that makes
    100 %."""
    weights: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for sample in every:
        for function in {_function(line) for line in sample.lines}:
            weights[function][sample.part] += sample.weight
    by_function: defaultdict[tuple[str, str, str], list[StackSample]] = defaultdict(list)
    for sample in samples:
        counted = set[tuple[str, str]]()
        for depth, line in enumerate(sample.lines):
            function = _function(line)
            others = sum(
                weight for part, weight in weights[function].items() if part != sample.part
            )
            if function not in counted and (
                not depth or others < ELSEWHERE * weights[function][sample.part]
            ):
                counted.add(function)
                by_function[sample.part, *function].append(
                    msgspec.structs.replace(sample, lines=sample.lines[depth:])
                )
    return [
        _place(part, function, inside, total) for (part, _, function), inside in by_function.items()
    ]


def _largest(places: list[Place]) -> Place | None:
    """Return the place with the largest share; None without places. If a called function has nearly
    all of the time of its caller, return the called function, because it is more precise."""
    rest = sorted(places, key=lambda place: -place.share_ratio)
    if not rest:
        return None
    most = place = rest.pop(0)
    for called in rest:
        within = (
            called.part == place.part
            and called.caller
            and _function(called.caller) == (_file(place), place.function)
        )
        if within and called.share_ratio >= ONE_CALLER * most.share_ratio:
            place = called
    return place


def _key(place: Place) -> tuple[str, str, str]:
    return place.part, _file(place), place.function


def _file(place: Place) -> str:
    return place.line.rpartition(":")[0]


def _functions(samples: Iterable[StackSample], total: float) -> list[Place]:
    """The functions of the program in these samples, each within one part of a step. `total`: the
    samples of which a share is taken."""
    by_function: defaultdict[tuple[str, str, str], list[StackSample]] = defaultdict(list)
    for sample in samples:
        if sample.lines:
            place, function = _split(sample.lines[0])
            by_function[sample.part, place.rpartition(":")[0], function].append(sample)
    return [
        _place(part, function, inside, total) for (part, _, function), inside in by_function.items()
    ]


def _place(part: str, function: str, samples: list[StackSample], total: float) -> Place:
    weight = sum(sample.weight for sample in samples)
    line, _ = _heaviest((sample.lines[0], sample.weight) for sample in samples)
    callee, _ = _heaviest(
        (sample.callee, sample.weight) for sample in samples if sample.lines[0] == line
    )
    caller, called = _heaviest(
        (sample.lines[1] if len(sample.lines) > 1 else "", sample.weight) for sample in samples
    )
    return Place(
        part,
        function,
        _split(line)[0],
        weight / total,
        sum(sample.weight for sample in samples if sample.kind == WAITS) / weight,
        sum(sample.weight for sample in samples if sample.kind == NATIVE) / weight,
        round(weight),
        callee,
        caller if called >= ONE_CALLER * weight else "",
    )


def _heaviest(weighed: Iterable[tuple[str, float]]) -> tuple[str, float]:
    """The name with the largest sum of weights, and that sum."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, weight in weighed:
        sums[name] += weight
    return max(sums.items(), key=lambda entry: entry[1])


def _heaviest_line(samples: list[StackSample]) -> CodePlace:
    """Return the line with most of these samples. Adds the line that calls its function, if nearly
    all calls come from one line."""
    line, most = _heaviest((sample.lines[0], sample.weight) for sample in samples)
    caller, called = _heaviest(
        (sample.lines[1] if len(sample.lines) > 1 else "", sample.weight)
        for sample in samples
        if sample.lines[0] == line
    )
    return CodePlace.of(line, caller=caller if called >= ONE_CALLER * most else "")


def _function(line: str) -> tuple[str, str]:
    """The file and the function of a line."""
    place, function = _split(line)
    return place.rpartition(":")[0], function


def _common(
    sample: StackSample, functions: Container[tuple[str, str]]
) -> tuple[tuple[str, str], int] | None:
    """The innermost of these functions in a stack, and its line there."""
    lines = map(_parts, sample.lines)
    return next(
        (
            ((file, function), number)
            for file, number, function in lines
            if (file, function) in functions
        ),
        None,
    )


def _parts(line: str) -> tuple[str, int, str]:
    """The file, the number and the function of a line."""
    place, function = _split(line)
    file, _, number = place.rpartition(":")
    return file, int(number), function


def _split(line: str) -> tuple[str, str]:
    """`file:line` and the function of a line."""
    place, _, function = line.rpartition(" ")
    return place, function


# --- work that may be avoided ---------------------------------------------------------------------

UPDATE = ("clip", "optimizer")
"""The parts of a step from the backward pass to the end of the update."""
MOSTLY_NATIVE = 0.4
"""With this share of samples outside of Python, or more, a function mostly runs operators. On a
busy machine the other samples may be operators, too."""
OF_OPTIMIZERS = (".step", ".zero_grad")
"""The ends of the names of torch's own methods of optimizers, and of the scaler of gradients."""


def avoidable_signals(samples: list[StackSample]) -> dict[str, Signal]:
    """Return signals of three places in the program. The first is the function with most of the
    time after the backward pass, including the functions of torch that it calls: an optimizer or
    gradient clipping of the program's own. The second is the line that runs operators of torch for
    most of the time of the forward pass and the loss. The third is the line that calls the step of
    an optimizer of torch. Empty with too few samples."""
    total = sum(sample.weight for sample in samples)
    if total < MIN_SAMPLES:
        return {}
    source = f"{total:.0f} stack samples of ordinary steps"
    update = [
        sample
        for sample in samples
        if sample.part in UPDATE
        and sample.lines
        and (not sample.callee or sample.callee.startswith("torch."))
        and not sample.callee.endswith(OF_OPTIMIZERS)
    ]
    elsewhere: defaultdict[tuple[str, str], float] = defaultdict(float)
    for sample in samples:
        for function in {_function(line) for line in sample.lines}:
            # of a step that is not marked, no part is known
            is_elsewhere = sample.part not in (*UPDATE, "between")
            elsewhere[function] += sample.weight / total if is_elsewhere else 0.0
    own = [
        place
        for place in _with_called(update, samples, total)
        if elsewhere[_file(place), place.function] < ELSEWHERE * place.share_ratio
    ]
    largest = _largest(own)
    signals = {
        "stack.update_ratio": Signal(
            largest.share_ratio if largest else 0.0,
            "ratio",
            f"{source}: in one function of the program after the backward pass",
            largest.code if largest else None,
        )
    }
    stepping = [sample for sample in samples if sample.callee.endswith(".step") and sample.lines]
    if stepping:
        signals["stack.optimizer_ratio"] = Signal(
            sum(sample.weight for sample in stepping) / total,
            "ratio",
            f"{source}: in the step of an optimizer of torch",
            _heaviest_line(stepping),
        )
    if largest:
        signals["stack.update_python_ratio"] = Signal(
            1 - largest.waits_ratio - largest.native_ratio,
            "ratio",
            f"{largest.samples} stack samples in this function",
        )
    operators = _functions(
        (
            sample
            for sample in samples
            if sample.part in ("forward", "loss") and sample.kind != WAITS and not sample.callee
        ),
        total,
    )
    heaviest = _largest([place for place in operators if place.native_ratio >= MOSTLY_NATIVE])
    signals["stack.operator_ratio"] = Signal(
        heaviest.share_ratio if heaviest else 0.0,
        "ratio",
        f"{source}: in operators that one function of the program calls itself",
        heaviest.code if heaviest else None,
    )
    return signals
