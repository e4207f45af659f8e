"""Who serves the batches of one DataLoader of the program.

The iterator that the program holds stays the same object. Its hook calls `Epoch.serve`. All servers draw from one stream of indices. A new
server rehearses first, on indices that the present server serves too. Then the present server gets no more indices and hands out what it
has under way, and the new server follows: no sample is lost, repeated or moved. Where a new server fails, the program's own loader serves
what was under way. Everything happens on the thread that asks for batches; other threads only set `wanted`.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any, ClassVar

from ..guard import from_outside
from .change import Refused
from .children import handles_children, waits_for_children
from .indices import Feed, Indices, RandomState
from .rehearsal import COMPARED, LIMIT_S, Rehearsal
from .servers import Recipe, Server, Settings, Spec, belongs_to, in_one_line, loader_of, settings_of
from .state import (
    State,
    cannot_share,
    free_host_bytes,
    moved,
    positions,
    state_of,
    state_of_samplers,
    written_by,
    written_here,
)

IDLE_S = 60.0
"""Workers that have not served for this time end. A trial needs both sides again within seconds."""
UNUSED_S = 3.0
"""A change is refused where the program asks for no batch within the limit of a rehearsal and this time."""
UNUSED_LOOKS, ENOUGH_BATCHES = 16, 16
"""Steps may take longer than that. So a change is refused only if the program also has made several steps without a batch, or got so many batches, beside
those that it had under way: each step looks some times."""
TIMES_OF_A_BATCH = 3.0
"""The workers of a rehearsal have this multiple of what the program needs for a batch, beyond the limit."""


RANDOM = "the dataset is random: workers draw other random numbers, so this change needs your permission: N, or --allow-numerics"
FIRST_BATCHES = (
    "the program takes only the first batches of an epoch, as next(iter(loader)) does: new workers would load batches that nobody uses"
)
FEW, EPOCHS = 4, 5
"""Batches of an epoch that are too few for new workers, and how many such epochs refuse a change."""
BROKEN_OFF = "an exception of the program has ended the wait for a batch"
CHILDREN = "the program has a handler of SIGCHLD, which would see the workers end"
WAITS = "the program waits for any of its child processes, and workers would be child processes too"
UNSEEN = "workers do not see that the dataset has changed in the middle of an epoch"
OF_ITS_OWN = (
    "the dataset changes itself with each sample, as a counter does: each worker would count for itself, so this change needs your permission:"
    " N, or --allow-numerics"
)
OF_THE_LOOP = "the training loop changes the sampler, or what the sampler uses: asked earlier, the sampler would give other samples"
UNKNOWN_SAMPLER = (
    "gpuconsole cannot see whether the training loop changes something that the program's own sampler uses, so this change needs your permission:"
    " N, or --allow-numerics"
)
WRITES = "loading prints, or writes files: workers would write in another order"
FREE_SHARE = 0.5
"""The share of the free memory of the machine that the caches of new workers may take."""
_random: weakref.WeakKeyDictionary[type, set[int]] = weakref.WeakKeyDictionary()
"""Datasets of which a change has shown that they draw random numbers, or count, by class and length. A program may make its loader anew in each epoch."""


def is_random(dataset: Any) -> bool:
    """Whether a change has shown that `dataset` draws random numbers, or counts: workers have others."""
    return _length(dataset) in _random.get(type(dataset), ())


def _note_random(dataset: Any, random: bool) -> None:
    lengths = _random.setdefault(type(dataset), set())
    (lengths.add if random else lengths.discard)(_length(dataset))


def _length(dataset: Any) -> int:
    """-1 where the dataset has no length."""
    try:
        return len(dataset)
    except Exception as problem:  # the program's own `__len__` may raise anything
        if from_outside(problem):
            raise
        return -1


_epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()


class Epoch:
    """One iterator of the program, from now on. `line`: the servers in the order in which they deliver; only the last one draws indices."""

    def __init__(self, control: Control, outer: Any, indices: Indices) -> None:
        """`outer`: the iterator that the program holds. It owns this object."""
        self.control, self.indices = control, indices
        self.outer = weakref.ref(outer)
        self.line: deque[Server] = deque()
        self.over = self.left = False
        """`left`: the program has begun another epoch of the loader, and may come back to this one."""
        self.alone = False
        """Whether the program takes batches of another epoch in turn with this one: no change reaches this one any longer."""
        self.broken_off = False
        """Whether an exception from outside, such as that of a signal handler of the program, has ended a call in its middle."""
        self._own_workers: Server | None = None
        """Workers for this epoch alone."""
        self._kept_workers = bool(getattr(outer, "_persistent_workers", False))

    def begin(self) -> None:
        """From now on this epoch serves the iterator."""
        outer = self.outer()
        if outer is not None:
            outer.__dict__["_gpuconsole_epoch"] = self
            outer.__dict__["_next_data"] = self.serve
        self.control.epoch = weakref.ref(self)
        _epochs.add(self)

    def serve(self) -> Any:
        """The next batch, in place of the iterator's own `__next__`."""
        if self.over:
            raise StopIteration
        if self.left:
            self.broken_off = True
            self._come_back()
        elif self.broken_off:
            self._mend()
        self.broken_off = True
        try:
            batch = self._serve(self.control)
        except Exception as problem:
            self.broken_off = from_outside(problem)
            raise
        self.broken_off = False
        return batch

    def _mend(self) -> None:
        """The program's own settings serve, from the first batch on that was not delivered."""
        if self.alone:
            self._without_workers()
        else:
            self.control.recover(self, BROKEN_OFF)

    def _serve(self, control: Control) -> Any:
        known = False
        if not self.alone:
            known = control.watch_state(self)
            control.go_on(self)
        files = positions() if control.watches_files and not self.alone else None
        while True:
            server = self.line[0]
            begun = time.monotonic()
            watches = files is not None or not (server.own or server.settings.num_workers)
            written = written_here() if watches else None
            try:
                index, batch = server.next()
            except StopIteration:
                if len(self.line) > 1:
                    self.line.popleft()
                    server.idle_since = time.monotonic()
                    continue
                self.end()
                raise
            except Exception as problem:
                if server.own or from_outside(problem):
                    raise
                if self.alone:
                    self._without_workers()
                else:
                    control.recover(self, f"{in_one_line(problem)}")
                continue
            if server.hides and self._has_output(server, index):
                continue
            break
        if known and server.own:
            control.note_loaded(self)
        if files is not None:
            control.note_files(moved(files, positions()))
        if watches and not self.alone:
            control.note_written(written, written_here(), server)
        self.indices.delivered()
        if not self.alone:
            control.delivered(time.monotonic() - begun)
        if control.rehearsal is not None and not self.alone:
            control.served(index, batch)
        if self.indices.sampler_changes and not self.alone:
            control.leave_sampler(self)
        return batch

    def _has_output(self, server: Server, index: Any) -> bool:
        """Return whether the program's own settings must load the batch of `index` again, because a worker has printed something. A batch that has only
        written to a file is not loaded again: the workers deliver the batches that they have begun, and end."""
        printed, wrote = server.new_output()
        if printed or wrote:
            self.control.note_output()
        if not printed:
            return False
        server.feed.drawn.appendleft(index)
        if self.alone:
            self._without_workers()
        else:
            self.control.recover(self, WRITES)
        return True

    def hand_over(self, server: Server) -> None:
        """`server` draws from now on, and delivers after those that have something under way."""
        last = self.line[-1]
        last.feed.closed = True
        feed = self._append(server)
        try:
            server.begin(feed)
        except Exception:
            self.line.pop()
            self.indices.give_back(list(feed.drawn))
            last.feed.closed = False
            raise
        outer = self.outer()
        if last.own and last.settings.num_workers and outer is not None:
            outer._persistent_workers = True  # torch must not end its workers when it has nothing to do

    def _append(self, server: Server) -> Feed:
        """Note, before `server` draws, that it does: what it has drawn is known wherever an exception from outside ends the call."""
        server.feed = feed = Feed(self.indices)
        self.line.append(server)
        return feed

    def start(self, server: Server) -> None:
        """`server` is the first one of the epoch."""
        server.begin(self._append(server))

    def back_to(self, server: Server) -> None:
        """Only `server` serves, from the first batch on that was not delivered."""
        lost = [index for server in self.line for index in server.feed.drawn]
        first = self.line[0] if self.line else None
        if first is server and server.own:  # it has batches under way: it only gets indices again
            lost = [index for server in list(self.line)[1:] for index in server.feed.drawn]
            self.indices.give_back(lost)
            server.feed.closed = False
            if server.settings.num_workers:
                server.fill()
        else:
            self.indices.give_back(lost)
            server.begin(Feed(self.indices))
        self.line = deque([server])

    def end(self) -> None:
        """The epoch is over. Workers go as the program's own would go."""
        self.over = True
        self.leave()
        outer = self.outer()
        if outer is not None and getattr(outer, "_workers", None) and not self._kept_workers:
            outer._shutdown_workers()
        self._end_own_workers()
        if not self.alone:
            self.control.epoch_ended()

    @property
    def under_way(self) -> bool:
        return not self.over and not self.left

    def abandon(self) -> None:
        """The program begins another epoch, or drops the iterator. The servers of the loader then serve the next epoch. If the program comes back to this
        epoch, the samples that the servers had under way are drawn again."""
        if self.under_way:
            self.left = True
            self.indices.rewind()
            stays = 1 if self.line and self.line[0].own else 0
            self.indices.give_back([index for server in list(self.line)[stays:] for index in server.feed.drawn])
            while len(self.line) > stays:
                self.line.pop()

    def _come_back(self) -> None:
        """The program takes a further batch of this epoch after it has begun another one of the loader, as in `next(iter(loader))` for a picture."""
        self.left = False
        control = self.control
        other = control.epoch() if control.epoch is not None else None
        self.alone = other is not None and other is not self and other.under_way
        outer = self.outer()
        if self.alone:
            own = self.line[0] if self.line else None
            if own is None and control.can_serve_itself(outer):
                own = Server(control.module, outer, control.program, own=True)
            try:
                self._serve_by(own or self._start_own_workers())
            except Exception as problem:  # the program gets its batches, whatever goes wrong here
                if from_outside(problem):
                    raise
                self._without_workers()
            return
        control.epoch = weakref.ref(self)
        try:
            self._serve_by(control.server_in_force(self))
        except Exception as problem:
            if from_outside(problem):
                raise
            self.line = self.line or deque([Server(control.module, outer, control.program, own=True)])
            control.recover(self, in_one_line(problem))

    def _serve_by(self, server: Server) -> None:
        """Only `server` delivers; after what the program's own iterator has under way."""
        if not self.line:
            self.start(server)
        elif self.line[0] is not server:
            self.hand_over(server)
        elif server.feed.closed:
            server.feed.closed = False
            if server.settings.num_workers:
                server.fill()

    def _start_own_workers(self) -> Server:
        """Workers as the program's own iterator of this epoch would have. Raises Refused."""
        self._own_workers = self.control.recipe.server(self.control.program, aside=True)
        return self._own_workers

    def _end_own_workers(self, kill: bool = False) -> None:
        workers, self._own_workers = self._own_workers, None
        if workers is not None:
            workers.close(kill)

    def _without_workers(self) -> None:
        """The workers for this epoch alone do not work: the iterator that the program holds makes the batches itself."""
        self.indices.give_back([index for server in self.line for index in server.feed.drawn])
        self._end_own_workers(kill=True)
        here = self.control.program._replace(num_workers=0, prefetch_factor=0)
        server = Server(self.control.module, self.outer(), here, own=True)
        server.begin(Feed(self.indices))
        self.line = deque([server])

    def serve_in_child(self) -> None:
        """In a forked child: the iterator serves without us, from the first batch on that was not delivered. The workers are those of the parent."""
        if self.over:
            return
        self.left, self._own_workers = True, None
        self.indices.give_back([index for server in self.line for index in server.feed.drawn])
        self.line.clear()
        outer = self.outer()
        if outer is not None:
            outer._sampler_iter = self.indices
            for name in ("_next_data", "_gpuconsole_epoch"):
                outer.__dict__.pop(name, None)

    def __del__(self) -> None:
        try:
            self.abandon()
            self._end_own_workers()
        except Exception:  # the interpreter may be ending: modules have no names any longer, not even contextlib
            pass

    def leave(self) -> None:
        outer = self.outer()
        if outer is not None and hasattr(outer, "_persistent_workers"):
            outer._persistent_workers = self._kept_workers


class Control:
    """One DataLoader of the program, from its first change on.

    `in_force`: the settings that serve or will serve next. `wanted`: the settings that a change asks for; None where no change is under way.
    `held`: the change is only prepared: `wanted` does not serve before the next `ask`.
    `allows_numerics`: other random numbers in a random dataset are accepted. `failure`: why the last change did not take effect.
    """

    dataset_stays: ClassVar[bool | None] = None
    """Whether no dataset has changed from one epoch to the next, as far as epochs were compared; None where none were. A dataset that changes needs new
    workers in each epoch."""

    def __init__(self, module: Any, loader: Any, outer: Any) -> None:
        self.module = module
        self._loader = weakref.ref(loader)
        self._outer = weakref.ref(outer)
        """The newest iterator."""
        self.recipe = Recipe(module, loader, outer)
        self.state = state_of(outer._dataset)
        """The dataset at the start of the epoch, or at the first change. With persistent workers of the program: at the first change. What the loading of
        batches has changed since then does not count."""
        self._caches: dict[int, float] = {}
        """The lists and dictionaries that the loading of samples fills, by identity, with the bytes of a value. Each worker fills its own."""
        self._loaded = self._counts = False
        self._numbers: RandomState | None = None
        """The program's random generators before a batch that its own process loads."""
        """Whether a batch was loaded since the change was asked for, and whether the loading changed more of the dataset than its caches."""
        self._tried: set[Settings] = set()
        """Settings whose workers have rehearsed, on a dataset in this state."""
        self._writes = False
        """Whether the loading of a batch has written: lines of output, or files."""
        self._written: list[int] = []
        """The bytes that each of the program's own workers had written at the last batch."""
        self._file = ""
        """A file that the loading of a batch has read, and that stays open."""
        self.program = self.in_force = settings_of(loader)
        self.wanted: Settings | None = None
        self.held = False
        self.allows_numerics = False
        self.likeness: Any = None
        """What the DataLoader that replaces this one has in common with it."""
        self.inherited = False
        """Whether the settings are those of the DataLoader before."""
        self.failure = ""
        self.fallen = ""
        """Why settings that were in force are not any longer, without a change that was asked for."""
        self._broken: dict[Settings, str] = {}
        """Settings whose workers failed when they were in force. The next change to them is refused, once: a block of a trial had other settings."""
        self.dropped: weakref.finalize[..., Any] | None = None
        """Called once the program has dropped the loader."""
        self.epoch: weakref.ref[Epoch] | None = None
        self.rehearsal: Rehearsal | None = None
        self._rehearses: weakref.ref[Epoch] | None = None
        """The epoch whose batches the rehearsal makes."""
        self._asked = 0.0
        self._looks = self._batches = self._epochs = 0
        """Looks since the last batch, and batches and new epochs, since the change was asked for."""
        self._batch_s = 0.0
        """The longest time that the program waited for one of them."""
        self._servers: dict[Settings, Server] = {}
        self._persistent = bool(loader.persistent_workers)

    def stand_in(self) -> Any:
        """Once the program has dropped the loader: what stands in for it as long as its epoch is under way; None without such an epoch."""
        outer = self._outer()
        epoch = outer.__dict__.get("_gpuconsole_epoch") if outer is not None else None
        loader = loader_of(outer) if outer is not None and (epoch is None or epoch.under_way) else None
        if loader is not None:
            self._loader = weakref.ref(loader)
        return loader

    @property
    def got_batches(self) -> bool:
        """Whether the program got a batch since the change was asked for."""
        return self._batches > 0

    @property
    def ended(self) -> bool:
        """Whether no epoch is under way."""
        epoch = self.epoch() if self.epoch is not None else None
        return epoch is None or not epoch.under_way

    def serves(self, dataset: Any) -> bool:
        """Whether this is the dataset of the loader. True for each dataset once the program has dropped the loader and holds only its iterator."""
        loader = self._loader()
        return loader is not None and (loader.dataset is dataset or isinstance(loader, Spec))

    @property
    def workers(self) -> list[Any]:
        """The workers that serve now."""
        epoch = self.epoch() if self.epoch is not None else None
        return epoch.line[-1].workers if epoch is not None and epoch.line and epoch.under_way else []

    @property
    def _depth(self) -> int:
        """How many indices the program's own loader draws ahead."""
        return self.program.num_workers * self.program.prefetch_factor

    def _generators(self) -> list[Any]:
        """The generators that the program gave to its loader and its samplers."""
        loader = self._loader()
        holders = [
            loader,
            getattr(loader, "sampler", None),
            batches := getattr(loader, "batch_sampler", None),
            getattr(batches, "sampler", None),
        ]
        generators = [getattr(holder, "generator", None) for holder in holders]
        return list({id(generator): generator for generator in generators if hasattr(generator, "get_state")}.values())

    def _look_at_samplers(self, whole: bool) -> State | None:
        loader = self._loader()
        return state_of_samplers(loader, whole) if loader is not None else None

    def abandon(self) -> None:
        """A new epoch begins. The one before may not have come to its end."""
        epoch = self.epoch() if self.epoch is not None else None
        if epoch is not None and epoch.under_way:
            try:
                epoch.abandon()
            except Exception as problem:  # the program begins its epoch in any case
                if from_outside(problem):
                    raise

    # --- the dataset ---------------------------------------------------------------------------------------------

    def adopt(self, loader: Any, outer: Any) -> None:
        """Go on with a loader that the program has made in place of the one before. `outer`: its iterator."""
        self._loader, self._outer = weakref.ref(loader), weakref.ref(outer)
        self.recipe = Recipe(self.module, loader, outer)
        self._epochs += 1
        self._look_at(outer._dataset)
        self._begin_again()
        if self.wanted is not None:
            self.follow(outer)

    def park(self) -> None:
        """Wait for the next loader, and keep nothing of the former one alive."""
        self.close()
        self.state = self.state._replace(contents={})
        del self.recipe

    def _begin_again(self) -> None:
        """The program's own settings are in force, until those that were in force before have workers for this epoch."""
        if self.in_force != self.program:
            if self.wanted is None or self.held:
                self.wanted, self.held = self.in_force, False
            self.in_force, self.inherited = self.program, True
            self._count_anew()

    def _look_at(self, dataset: Any) -> bool:
        """A new epoch begins: new workers start, as torch starts them for each epoch: what the program has changed since the last one, in its dataset, in a
        function that collates or in its global variables, is seen. Returns whether the dataset differs from the one that the settings have rehearsed on."""
        state = state_of(dataset, self._caches)
        same = not state.differs(self.state)
        Control.dataset_stays = same and state.complete and self._collates_as_ever() and Control.dataset_stays is not False
        self.close()
        if not same:
            self._tried.clear()
        self.state = state
        return not same

    def _collates_as_ever(self) -> bool:
        """Whether torch's own function makes the batches: one of the program may change from epoch to epoch."""
        return str(getattr(getattr(self._loader(), "collate_fn", None), "__module__", "")).startswith("torch.")

    def watch_state(self, epoch: Epoch) -> bool:
        """Find out whether the program has changed the dataset since the last batch. Then the program's own loader serves from this batch on. The program's
        own workers would not see the change. Returns whether the state of the dataset is known now, so that `note_loaded` can compare."""
        served = len(epoch.line) > 1 or not epoch.line[0].own
        outer = epoch.outer()
        waits = self.wanted is not None or (self._counts and bool(self._servers))
        if self.program.num_workers or outer is None or not (served or waits):
            return False
        state = state_of(outer._dataset, self._caches)
        if not state.differs(self.state):
            self._numbers = RandomState() if self.wanted is not None and epoch.indices.checked else None  # most samplers draw a seed first
            return True
        self.state = state
        Control.dataset_stays = False
        self._tried.clear()
        if served:
            self.recover(epoch, UNSEEN)
        else:
            self._give_up(UNSEEN)
        self.close()
        return False

    def note_loaded(self, epoch: Epoch) -> None:
        """The program's own process has loaded a batch. What has changed in the dataset was changed by its own code, not by that of the training: a cache,
        a counter. What a cache does besides shows at the next batch."""
        outer = epoch.outer()
        if outer is None:
            return
        if self._numbers is not None and self._numbers != RandomState():
            self._loaded = self._counts = True
            _note_random(outer._dataset, True)
            if self.wanted is not None and not self.allows_numerics:
                self._give_up(RANDOM)
            return
        state = state_of(outer._dataset, self._caches)
        if not state.differs(self.state):
            self._loaded = self._loaded or self._numbers is not None
            return
        if filled := state.filled_since(self.state):
            self._caches |= filled
            state = state_of(outer._dataset, self._caches)
        else:
            self._loaded = self._counts = True
            _note_random(outer._dataset, True)
            if self.wanted is not None and not self.allows_numerics:
                self._give_up(OF_ITS_OWN)
        self.state = state

    def _look_anew(self, outer: Any) -> None:
        """A change is asked for, and no worker of ours has seen an earlier state of the dataset: what has changed until now does not matter."""
        if self.program.num_workers or self.in_force != self.program or self._servers or self.rehearsal is not None:
            return
        self._loaded = self._counts = False
        state = state_of(outer._dataset, self._caches)
        if state.differs(self.state):
            self._tried.clear()
        self.state = state

    @property
    def watches_files(self) -> bool:
        """Whether to find out if the loading of a batch reads a file that stays open: before workers start that would share its position."""
        return self.wanted is not None and self.in_force == self.program and self.wanted not in self._tried and self.rehearsal is None

    def note_files(self, name: str) -> None:
        """A batch was loaded, and the file `name` was read; empty where there is none."""
        self._file = name or self._file

    def note_written(self, before: int | None, after: int | None, server: Server) -> None:
        """Note what loading a batch by `server` has written. `before`, `after`: the bytes that this thread had written before and after the batch."""
        here = not server.settings.num_workers
        outer = self._outer()
        if here:
            if before is not None and after is not None and after > before:
                self.note_output()
        elif outer is not None and self.program.num_workers:
            by_workers = written_by(getattr(outer, "_workers", ()))
            by_workers_before = self._written or ([] if self.recipe.imports() else [0] * len(by_workers))
            self._writes = self._writes or (len(by_workers) == len(by_workers_before) and by_workers != by_workers_before)
            self._written = by_workers

    def note_output(self) -> None:
        """Note that loading a batch has written something. A change in force ends: the program's own settings come back after the batches that the workers
        have begun."""
        self._writes = True
        if self.in_force != self.program:
            self._broken[self.in_force] = self.fallen = WRITES
            self._give_up(WRITES)
            self.wanted, self.held = self.program, False

    def leave_sampler(self, epoch: Epoch) -> None:
        """The training loop changes the sampler, which must not be asked earlier than the program asks it."""
        if len(epoch.line) > 1 or not epoch.line[0].own:
            self.recover(epoch, OF_THE_LOOP)
        elif self.wanted is not None:
            self._give_up(OF_THE_LOOP)

    def _start(self, settings: Settings) -> Server:
        """A new server. Raises Refused where its workers would disturb those that load now, or would see another dataset."""
        if settings != self.program:
            shared = state_of(self.recipe.dataset).shared
            if shared := shared or (f"the open file {self._file}" if self._file else ""):
                raise Refused(cannot_share(shared))
            if self._writes:
                raise Refused(WRITES)
            if state_of(self.recipe.dataset, self._caches).differs(self.state):
                raise Refused(UNSEEN)
            if handles_children():
                raise Refused(CHILDREN)
            if settings.num_workers and (line := waits_for_children()):
                raise Refused(f"{WAITS} ({line})")
            self._require_room(settings.num_workers)
        return self.recipe.server(settings, aside=bool(self.program.num_workers), hides=settings != self.program)

    def _require_room(self, workers: int) -> None:
        """Raises Refused where the caches of new workers could take much of the machine's memory."""
        needed = workers * sum(self._caches.values()) * max(0, _length(self.recipe.dataset))
        if needed and needed > FREE_SHARE * (free := free_host_bytes()):
            raise Refused(
                f"each worker fills a cache of its own: {workers} of them may need {needed / 1e9:.2g} GB, and {free / 1e9:.2g} GB are free"
            )

    # --- asked for by the training thread ----------------------------------------------------------------------

    def ask(self, settings: Settings, outer: Any, held: bool = False) -> None:
        """Begin to change to `settings`, or only to prepare that. `outer`: the newest iterator of the loader. Raises Refused."""
        if why := self._broken.pop(settings, ""):
            raise Refused(f"the last change to these settings ended: {why}")
        self.failure = ""
        self._count_anew()
        self._look_anew(outer)
        self.wanted, self.held = settings, held
        if "_gpuconsole_epoch" not in outer.__dict__:
            self.follow(outer)

    def ask_beside(self, settings: Settings) -> None:
        """Change to `settings` beside another loader of the training, which was asked. Failures are told by `under_way` of all loaders."""
        outer = self._outer()
        if settings == (self.wanted if self.wanted is not None and not self.held else self.in_force):
            return
        self.wanted, self.held, self.inherited = settings, False, True
        self._count_anew()
        if outer is not None:
            self._look_anew(outer)
        if outer is not None and "_gpuconsole_epoch" not in outer.__dict__:
            self.follow(outer)

    def _count_anew(self) -> None:
        self._asked = time.monotonic()
        self._looks, self._batches, self._epochs, self._batch_s = 0, 0, 0, 0.0

    def under_way(self) -> bool:
        """Whether a change is under way. Raises Refused where the last one failed."""
        if self.failure:
            failure, self.failure = self.failure, ""
            raise Refused(failure)
        if self.wanted is None:
            epoch = self.epoch() if self.epoch is not None else None
            return epoch is not None and epoch.under_way and len(epoch.line) > 1
        if self.rehearsal is not None and (why := self.rehearsal.over()):
            self._give_up(why)
            return self.under_way()
        if self._epochs >= EPOCHS and self._batches < FEW * self._epochs:
            self._give_up(FIRST_BATCHES)
            return self.under_way()
        limit_s = self.rehearsal.limit_s if self.rehearsal is not None else LIMIT_S
        self._looks += 1
        in_vain = self._looks > UNUSED_LOOKS or self._batches > ENOUGH_BATCHES + max(
            self._depth, self.in_force.num_workers * self.in_force.prefetch_factor
        )
        if in_vain and time.monotonic() - self._asked > limit_s + UNUSED_S:
            self._give_up("the program asked for no batch that could show whether the change works")
            return self.under_way()
        return True

    def ready(self) -> bool:
        """Whether `wanted` can serve the next batch that is drawn. Raises Refused where the preparation failed."""
        under_way, epoch = self.under_way(), self.epoch() if self.epoch is not None else None
        if self.wanted is None:
            return not under_way
        return epoch is not None and epoch.under_way and len(epoch.line) == 1 and self._has(self.wanted)

    def _has(self, settings: Settings) -> bool:
        return settings in (self.in_force, self.program) or settings in self._servers

    # --- on the thread that asks for batches --------------------------------------------------------------------

    def follow(self, outer: Any) -> None:
        """Follow an iterator from its next batch on."""
        outer_ref = weakref.ref(outer)
        outer.__dict__["_next_data"] = lambda: self.attach(outer_ref()).serve()

    def attach(self, outer: Any) -> Epoch:
        """Follow the indices of the program's own iterator, which serves as before."""
        drawn = outer._send_idx if self.program.num_workers else outer._num_yielded
        indices = Indices(outer._sampler_iter, self._generators(), self._look_at_samplers, drawn, outer._num_yielded, self._depth)
        epoch = Epoch(self, outer, indices)
        server = Server(self.module, outer, self.program, own=True)
        under_way = outer._send_idx - outer._rcvd_idx if self.program.num_workers else 0
        server.take_over(Feed(indices, drawn=under_way))
        epoch.line.append(server)
        epoch.begin()
        return epoch

    def new_iterator(self, loader: Any, plain: Any) -> Any:
        """The iterator of a new epoch, which the servers in force will serve."""
        self.abandon()
        self._epochs += 1
        if not self._persistent and self._look_at(loader.dataset):
            self._begin_again()
        if self.in_force == self.program:
            outer = plain(loader)
            self._outer = weakref.ref(outer)
            if self.wanted is not None:
                self.follow(outer)
            else:
                self._end_idle(None)
            return outer
        outer = self.recipe.posing(loader) if self.program.num_workers else plain(loader)
        self._outer = weakref.ref(outer)
        belongs_to(outer, loader)
        self.begin_epoch(outer)
        return outer

    def begin_epoch(self, outer: Any) -> None:
        """Let the server in force serve a new iterator. A program with workers draws its first indices now, without them at the first batch."""
        epoch = Epoch(self, outer, Indices(outer._sampler_iter, self._generators(), self._look_at_samplers, depth=self._depth))
        epoch.begin()
        if self.program.num_workers:
            epoch.indices.peek(self._depth)
            self._begin(epoch)
        else:
            outer.__dict__["_next_data"] = lambda: self._begin(epoch).serve()

    def _begin(self, epoch: Epoch) -> Epoch:
        outer = epoch.outer()
        if outer is not None:
            outer.__dict__["_next_data"] = epoch.serve
        epoch.broken_off = True
        try:
            epoch.start(self._server(self.in_force, epoch))
        except Exception as problem:
            if from_outside(problem):
                raise
            self.recover(epoch, in_one_line(problem))
        epoch.broken_off = False
        return epoch

    def go_on(self, epoch: Epoch) -> None:
        """Take the change one step further. Raises nothing of its own."""
        if self.wanted is None:
            self._end_idle(epoch)
            return
        try:
            self._go_on(epoch, self.wanted)
        except Refused as refused:
            self._give_up(str(refused))
        except Exception as problem:  # the program gets its batches, whatever goes wrong here
            if from_outside(problem):
                raise
            self._give_up(in_one_line(problem))

    def delivered(self, waited_s: float) -> None:
        """The program got a batch after `waited_s` seconds."""
        self._looks = 0
        self._batches += 1
        if self.rehearsal is None:
            self._batch_s = max(self._batch_s, waited_s)

    def served(self, index: Any, batch: Any) -> None:
        """The present server delivers `batch`. Raises nothing of its own: a batch may hold objects that cannot be copied or compared."""
        assert self.rehearsal is not None
        try:
            self.rehearsal.served(index, batch)
        except Exception as problem:
            if from_outside(problem):
                raise
            self._give_up(f"the batches cannot be compared: {in_one_line(problem)}")

    def _go_on(self, epoch: Epoch, wanted: Settings) -> None:
        if len(epoch.line) > 1:  # the last change is not complete
            return
        if wanted == self.in_force:
            self._drop_rehearsal()
            self.wanted = None
        elif self._has(wanted) or wanted in self._tried:
            if self.held:
                self._server(wanted, epoch)  # its workers are ready when the change is asked for
                return
            epoch.hand_over(self._server(wanted, epoch))
            self.in_force, self.wanted = wanted, None
        elif self.rehearsal is None or self._rehearses is None or self._rehearses() is not epoch:
            self._drop_rehearsal()  # the program has left the epoch of the rehearsal
            self._begin_rehearsal(epoch, wanted)
        elif self.rehearsal.poll():
            self._end_rehearsal(wanted)
            self._go_on(epoch, wanted)
        elif why := self.rehearsal.over():
            raise Refused(why)

    def _begin_rehearsal(self, epoch: Epoch, wanted: Settings) -> None:
        if epoch.indices.random:
            raise Refused("the sampler draws from the program's random generators: asked earlier, it would give other samples")
        if epoch.indices.sampler_changes:
            raise Refused(OF_THE_LOOP)
        if epoch.indices.sampler_unknown and not self.allows_numerics:
            raise Refused(UNKNOWN_SAMPLER)
        if shared := state_of(self.recipe.dataset).shared:
            raise Refused(cannot_share(shared))
        loads_here = not self.program.num_workers and self.in_force == self.program
        if not epoch.indices.checked or (loads_here and not self._loaded):
            return
        count = max(COMPARED, wanted.num_workers)
        if wanted.num_workers:
            count = min(count, wanted.num_workers * wanted.prefetch_factor)
        indices = epoch.indices.peek(count)
        if len(indices) == count:  # else in the next epoch
            longer_s = TIMES_OF_A_BATCH * self._batch_s * max(1, self.program.num_workers)
            self.rehearsal = Rehearsal(self._start(wanted), indices, longer_s)
            self._rehearses = weakref.ref(epoch)

    def _end_rehearsal(self, wanted: Settings) -> None:
        rehearsal, self.rehearsal = self.rehearsal, None
        assert rehearsal is not None
        loader = self._loader()
        if loader is not None:
            _note_random(loader.dataset, self._counts or not rehearsal.same)
        if not rehearsal.same and not self.allows_numerics:
            rehearsal.server.close()
            raise Refused(RANDOM)
        self._servers[wanted] = rehearsal.server
        self._tried.add(wanted)

    def _server(self, settings: Settings, epoch: Epoch) -> Server:
        """The server with these settings; for those of the program its own iterator, where that can serve."""
        outer = epoch.outer()
        if settings == self.program and self.can_serve_itself(outer):
            own = next((server for server in epoch.line if server.own), None)
            return own or Server(self.module, outer, settings, own=True)
        if settings not in self._servers:
            self._servers[settings] = self._start(settings)
        return self._servers[settings]

    def server_in_force(self, epoch: Epoch) -> Server:
        """The server with the settings in force. Raises Refused."""
        return self._server(self.in_force, epoch)

    def can_serve_itself(self, outer: Any) -> bool:
        """Whether the iterator that the program holds can load with the program's own settings."""
        return outer is not None and (not self.program.num_workers or hasattr(outer, "_workers"))

    def go_on_in_child(self) -> None:
        """In a forked child: nothing of the parent's changes goes on."""
        self.in_force, self.wanted, self.rehearsal, self._servers = self.program, None, None, {}
        for epoch in list(_epochs):
            if epoch.control is self:
                epoch.serve_in_child()

    # --- ends ---------------------------------------------------------------------------------------------------

    def recover(self, epoch: Epoch, why: str) -> None:
        """The server in force has failed: the program's own settings serve again, from the first batch on that was not delivered."""
        if self.in_force != self.program:
            self._broken[self.in_force] = self.fallen = why
        self._give_up(why)
        failed = [server for server in epoch.line if not server.own]
        self.in_force = self.program
        for server in failed:
            self._servers = {settings: kept for settings, kept in self._servers.items() if kept is not server}
            server.close(kill=True)
        epoch.back_to(self._server(self.program, epoch))

    def _give_up(self, why: str) -> None:
        self.failure, self.wanted = why, None
        self._drop_rehearsal()

    def _drop_rehearsal(self) -> None:
        rehearsal, self.rehearsal = self.rehearsal, None
        if rehearsal is not None:
            rehearsal.server.close(kill=True)

    def epoch_ended(self) -> None:
        self._drop_rehearsal()  # it begins again in the next epoch
        if not self._persistent:
            self.close()  # also for a program that then waits for all its children

    def _end_idle(self, epoch: Epoch | None) -> None:
        """End workers that have long had nothing to do. `epoch`: the one under way."""
        if self._servers:
            for settings, server in list(self._servers.items()):
                if (epoch is None or server not in epoch.line) and time.monotonic() - server.idle_since > IDLE_S:
                    del self._servers[settings]
                    server.close()

    def close(self) -> None:
        """End all workers that were started here."""
        self._drop_rehearsal()
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
