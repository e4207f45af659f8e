"""Optimizer steps, and where a step of the program ends: at the last optimizer step of an iteration of its loop."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

from . import calls, passes, tracing
from .calls import spanned
from .evidence.steps import Stack, iterations, own_updates, stack_of
from .guard import MARK, alike, entry, from_outside, hot_entry, put, switch, wrappers_without_level
from .memory import memory, raised, watch_retries
from .recorder import BACKWARD, COMPILED, OPTIMIZER, OWN, ZERO, Mark, get_ident
from .watch import recorder, watch

LOOK_AT = (0, 2)
"""Steps at whose end all objects are looked at for root modules."""
HELD = 12
"""Optimizer steps of a program with several optimizers that are looked at together: until then each of them ends a step, and none is sent."""
ALONE = 3
"""The same, where the program has made only one optimizer: slow steps are then sent soon."""
MOST_GONE = 32
"""Optimizers that are gone, of which the number of steps is kept."""


class Stepped(NamedTuple):
    """A step of an optimizer: which one (0: none in particular), and where it was called. `joins`: whether it belongs to the iteration of the
    optimizer step before it. `worked`, `batch`: whether a pass ran since then, and where a batch was made. `sees_batches`: whether that is known."""

    key: int
    stack: Stack | None
    worked: bool
    batch: Stack | None
    sees_batches: bool = False
    joins: bool = False


class Steppers:
    """Which optimizers step, and where a step of the program ends: at the last optimizer step of an iteration."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.stepped: dict[int, int] = {}
        """How often each optimizer has stepped."""
        self.decided = False
        self.held: list[Stepped] = []
        """The optimizer steps that have not been looked at yet."""
        self.blind = 0
        """Steps in a row with a backward pass and no forward pass of a known class."""
        self.inside = False
        """Whether an optimizer steps now."""
        self.events = 0
        self._last: Stepped | None = None
        self._fresh: set[int] = set()
        """The optimizers that have stepped in the present iteration."""
        self._followed: dict[int, bool] = {}
        """For each optimizer, whether the one after it belonged to the same iteration, the last time."""
        self._open: Mark | None = None
        """The end of the last optimizer step, if the step of the program was not ended there because another optimizer should follow."""
        iterations.reset()
        own_updates.reset()

    def has_stepped(self, key: int) -> bool:
        """An optimizer has stepped. Returns whether the step of the program ends here."""
        self.events += 1
        self.stepped[key] = self.stepped.get(key, 0) + 1
        if not iterations.on:
            if not self.decided:
                self.held.append(Stepped(key, None, True, None))
            return True
        worked = recorder.backwards + recorder.passes > (self._open.passes if self._open is not None else 0)
        event = Stepped(key, stack_of(sys._getframe(2)), worked, iterations.batch, iterations.sees_batches)
        iterations.batch = None
        if not self.decided:
            self.held.append(event)
            return True
        event = self._judged(event)
        if self._open is not None:
            if not event.joins:
                recorder.split(self._open)
            self._open = None
        elif event.joins:
            recorder.go_on()
        if self._followed.get(key):
            self._open = recorder.mark()
            return False
        return True

    def bound(self) -> None:
        """Forget optimizers that are gone, once there are many of them."""
        if len(self.stepped) > 2 * len(watch.optimizers) + MOST_GONE:
            known = {0, *map(id, watch.alive(watch.optimizers))}
            for counts in (self.stepped, self._followed):
                for key in counts.keys() - known:
                    del counts[key]

    def decide(self) -> None:
        """Look at the optimizer steps that are held: join those of one iteration."""
        if self.decided:
            return
        self.decided = True
        if iterations.on and self.held:
            for _ in range(2):  # the first time shows which loops are inner ones
                self._last = None
                judged = [self._judged(event) for event in self.held]
            recorder.merge([not event.joins for event in judged[1:]] + [True])
            recorder.keeps = True
        self.held = []

    def close(self) -> None:
        """The process ends: the last step is not continued."""
        self.decide()
        own_updates.close()
        if self._open is not None:
            recorder.split(self._open)
            self._open = None
        recorder.keeps = False

    def several(self) -> None:
        """The program has several optimizers."""
        if not iterations.on:
            iterations.on, recorder.keeps = True, self.decided
            self._last = Stepped(0, None, True, None)

    def _judged(self, event: Stepped) -> Stepped:
        before, self._last = self._last, event
        joins = False
        if before is None:
            self._fresh.clear()
        elif event.key and before.key:
            joins = not event.worked and event.key != before.key
            if not joins and before.stack is not None and event.stack is not None:
                turns = self.stepped.get(before.key, 1) / self.stepped.get(event.key, 1)
                repeats = event.key not in self._fresh and (event.sees_batches or self._followed.get(before.key, False))
                joins = iterations.same(before.stack, event.batch, event.stack, turns, repeats)
            self._followed[before.key] = joins
        if not joins:
            self._fresh.clear()
        self._fresh.add(event.key)
        return event._replace(joins=joins)

    def begin_anew(self) -> None:
        """Forget the iteration under way: an exception of the program has interrupted the agent's code."""
        self.inside, self._open, self._last = False, None, None
        if not self.decided:
            del self.held[len(recorder.done) :]


steppers = Steppers()
switch.begin_anew.append(steppers.begin_anew)
LBFGS = "LBFGS"
"""The class of torch's optimizer that evaluates its closure several times in a step."""


@wrappers_without_level
def on_optimizer(module: Any) -> None:
    """Steps of all optimizers; `zero_grad`; and where optimizers are made."""
    put(module.Optimizer, "zero_grad", spanned(ZERO, module.Optimizer.zero_grad))
    passes.state.end_in_backward = end_in_backward
    calls.compiled.end_step = end_compiled
    plain = module.Optimizer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if not tracing.is_compiling():
            note_made(self)

    put(module.Optimizer, "__init__", alike(__init__, plain))


def watch_class(cls: Any) -> None:
    """Make `step` of a class of optimizers a segment. torch's hooks of optimizers would leave out the time around them, and steps that fail. A class that
    lets nobody set its attributes is not watched."""
    if getattr(cls.step, MARK, None) is switch:
        return
    try:
        put(cls, "step", _spanned_step(cls.step))
    except Exception as problem:  # of a metaclass of the program
        if from_outside(problem):
            raise


@wrappers_without_level
def watch_scheduled(optimizer: Any) -> None:
    """The same for an optimizer that had a scheduler of the learning rate before the agent began: the scheduler has given it a `step` of its own."""
    plain = vars(optimizer).get("step")
    if plain is None or getattr(plain, MARK, None) is switch:
        return
    spanned_step, owner = _spanned_step(_without_self(plain)), weakref.ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        return spanned_step(owner(), *args, **kwargs)

    put(optimizer, "step", alike(step, plain))


@wrappers_without_level
def _without_self(plain: Any) -> Any:
    """`plain`, which knows its optimizer, as a method."""

    def step(_: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return step


@wrappers_without_level
def _spanned_step(plain: Any) -> Any:
    """The function `plain` of an optimizer's step as a segment. The parameters are those of torch's own steps: see `alike`."""

    def step(*args: Any, **kwargs: Any) -> Any:
        if tracing.compiles() or switch.failed or not args:
            return plain(*args, **kwargs)
        self = args[0]
        if earlier and id(self) in earlier:
            adopt(self)
        if recorder.light and recorder.light == get_ident() and len(recorder.stack) == 1:
            recorder.stack.append(OPTIMIZER)
            passes.state.evaluated, passes.state.evaluates_again = None, type(self).__name__ == LBFGS
        elif tracing.is_compiling() or not begin(self):
            return plain(*args, **kwargs)
        done = False
        try:
            result = plain(*args, **kwargs)
            done = True
            return result
        except RuntimeError as problem:
            raised(problem)
            raise
        finally:
            if not recorder.light:
                end(self, done)
            elif done and recorder.passes:
                try:  # here and not in a function of its own: see `hot_entry`
                    passes.state.sized = False  # torch.autograd.grad may have computed the gradients
                    recorder.cut_light()
                except Exception as problem:
                    if switch.off("optimizer.end_usual", problem):
                        raise
            else:
                end_light(self, done)

    hooked = alike(step, plain)
    setattr(hooked, MARK, switch)
    return hooked


@wrappers_without_level
def on_scaler(module: Any) -> None:
    """A gradient scaler leaves out the step of the optimizer where a gradient is not finite: the step of the program ends all the same."""
    plain = module.GradScaler.step

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        events = begin_scaled() if not switch.failed else None
        done = False
        try:
            result = plain(self, optimizer, *args, **kwargs)
            done = True
            return result
        finally:
            if events is not None:
                end_scaled(optimizer, events, done)

    put(module.GradScaler, "step", alike(step, plain))


@entry("optimizer.made")
def note_made(optimizer: Any) -> None:
    if switch.failed:
        return
    watch.note_made("optimizer", optimizer)
    own_updates.optimizer_made()
    watch_retries(sys.modules["torch"].cuda)
    watch_class(type(optimizer))
    _add(optimizer)


earlier: set[int] = set()
"""The identities of the optimizers that the program had made before the agent began. One that steps belongs to the training that is watched; the others
may be left from an earlier training in a notebook."""


def had_made(optimizer: Any) -> None:
    """The program had made an optimizer before the agent began."""
    earlier.add(id(optimizer))
    own_updates.over = True
    watch_retries(sys.modules["torch"].cuda)
    watch_class(type(optimizer))
    watch_scheduled(optimizer)


@entry("optimizer.adopt")
def adopt(optimizer: Any) -> None:
    """An optimizer that was made before the agent began steps for the first time since then."""
    _add(optimizer)


def _add(optimizer: Any) -> None:
    earlier.discard(id(optimizer))
    watch.add(watch.optimizers, optimizer)
    steppers.bound()
    if not iterations.on and len(watch.alive(watch.optimizers)) > 1:
        if recorder.light == get_ident():
            recorder.mark_all()
        steppers.several()


@hot_entry("optimizer.begin")
def begin(optimizer: Any) -> bool:
    """Begin the segment of an optimizer step. Returns whether there is one to end."""
    try:
        if not recorder.thread:
            if switch.failed or recorder.index:
                return False
            inside = _in_backward()
            if not inside and _graph_task() != -1:
                passes.state.inner = True
                return False
            recorder.begin([BACKWARD] if inside else [])  # the first optimizer step of this process: it trains
            memory.first_update(optimizer)
        if steppers.inside or recorder.thread != get_ident() or (recorder.light and OPTIMIZER in recorder.stack):
            if BACKWARD in recorder.stack and _graph_task() != -1:
                passes.state.inner = True
            return False
        recorder.mark_all()
        steppers.inside = True
        passes.state.evaluated, passes.state.evaluates_again = None, type(optimizer).__name__ == LBFGS
        recorder.enter(OPTIMIZER)
        return True
    except Exception as problem:
        if switch.off("optimizer.begin", problem):
            raise
        return False


@hot_entry("optimizer.end_light")
def end_light(optimizer: Any, done: bool) -> None:
    """End an optimizer step in a light step without a pass that was seen. `done`: the optimizer has not raised an exception."""
    try:
        del recorder.stack[1:]
        if done:
            recorder.mark_all()
            _has_stepped(optimizer)
    except Exception as problem:
        if switch.off("optimizer.end_light", problem):
            raise


@hot_entry("optimizer.end")
def end(optimizer: Any, done: bool) -> None:
    """End the segment; `done`: the optimizer has not raised an exception."""
    try:
        steppers.inside = False
        if not recorder.thread:
            return
        if (
            done
            and steppers.decided
            and recorder.passes
            and len(recorder.stack) == 2
            and not iterations.on
            and recorder.index > LOOK_AT[-1]
        ):
            steppers.events += 1  # the usual step: there is nothing to find out
            watch.micro_batches = recorder.backwards or 1
            if recorder.backwards > watch.most_micro_batches:
                watch.most_micro_batches = recorder.backwards
            passes.state.sized = False
            recorder.cut(leaves=True)
            recorder.work()
            return
        recorder.leave()
        if done:
            _has_stepped(optimizer)
    except Exception as problem:
        if switch.off("optimizer.end", problem):
            raise


@entry("optimizer.begin_scaled")
def begin_scaled() -> int | None:
    """Begin the segment of a scaler. Returns how often optimizers have stepped; None: there is nothing to end."""
    if tracing.is_compiling():
        return None
    if not (recorder.thread or recorder.index or switch.failed):
        recorder.begin([])  # the first step of this process may be left out
    if recorder.thread != get_ident():
        return None
    recorder.mark_all()
    recorder.enter(OPTIMIZER)
    return steppers.events


@entry("optimizer.end_scaled")
def end_scaled(optimizer: Any, events: int, done: bool) -> None:
    if not recorder.thread:
        return
    recorder.leave()
    if done and steppers.events == events:
        _has_stepped(optimizer)


def _has_stepped(optimizer: Any) -> None:
    if BACKWARD in recorder.stack:  # one optimizer for each parameter, stepped within backward
        passes.state.inner = True
        return
    if COMPILED in recorder.stack:
        calls.compiled.stepped = True
        return
    key = id(optimizer)
    if recorder.index in LOOK_AT or steppers.blind == 4:
        _look()
    if steppers.has_stepped(key):
        end_step()


def end_in_backward() -> None:
    """The end of a backward pass in which optimizers have stepped."""
    passes.state.inner = False
    if recorder.index in LOOK_AT:
        _look()
    end_whole()


def end_compiled() -> None:
    """The end of a compiled function in which optimizers have stepped."""
    if not recorder.thread:
        recorder.begin([])
    end_whole()


def end_whole() -> None:
    """End a step that no call of an optimizer ends."""
    if steppers.has_stepped(0):
        end_step()


def end_step() -> None:
    """End the step, then let the agent work."""
    steppers.blind = 0 if recorder.passes or not recorder.backwards else steppers.blind + 1
    watch.micro_batches = recorder.backwards or 1
    watch.most_micro_batches = max(watch.most_micro_batches, recorder.backwards)
    passes.state.sized = False
    recorder.cut()
    if not steppers.decided and len(steppers.held) >= (HELD if iterations.on else ALONE):
        steppers.decide()
    recorder.work()


def _look() -> None:
    recorder.enter(OWN)
    try:
        passes.find_roots()
    finally:
        recorder.leave()


def _graph_task() -> int:
    """The number of the backward pass that this thread works for; -1: none. On a GPU torch computes gradients, and calls their hooks, in a thread of its
    own: an optimizer that steps there steps within the pass of the training thread."""
    return int(sys.modules["torch"]._C._current_graph_task_id())


def _in_backward() -> bool:
    """Whether a backward pass is under way that began before the account."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


HOOKS = {"torch.optim.optimizer": on_optimizer, "torch.amp.grad_scaler": on_scaler}
