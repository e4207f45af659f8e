"""Who serves the batches of one DataLoader of the program, while a change of it is under way or in
force.

The iterator that the program holds stays the same object, with a `_next_data` of its own, which
torch's `__next__` calls. All servers draw from one stream of indices. Where a change takes effect,
the present server gets no more indices and hands out what it has under way, and the new one
follows: no sample is lost, repeated or moved. Where a new server fails, the program's own iterator
serves from the first batch on that was not delivered. Workers load ahead, from copies of the
dataset: that the loop does not change meanwhile what they load, nobody can find out, so the user is
asked first (see `known`). Everything happens on the thread that asks for batches; other threads
only set `wanted`.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..guard import from_outside
from .batch_sources import (
    BatchSource,
    IndexFeed,
    Indices,
    LoaderSettings,
    SourceFactory,
    handles_children,
    in_one_line,
    settings_of,
)
from .change import ChangeRefused
from .state import WRITES, Use, cannot_share, shared_by, use

IDLE_S = 60.0
"""Workers that have not served for this time end. A trial needs both sides again within seconds."""
WATCHED = 3
"""Batches that the program's own process loads before workers start: what they read and write is
looked at."""
UNUSED_S = 18.0
UNUSED_LOOKS = 16
"""A change is refused where the program asks for no batch in so many seconds and so many steps."""
EPOCHS = 5
"""Epochs in which a change must take effect."""
SHORT = (
    "the program takes only a few batches of each epoch, as next(iter(loader)) does: it ends before"
    " new workers are ready"
)
INTERLEAVED = (
    "the program takes batches of two epochs of one DataLoader in turn: make one DataLoader for"
    " each"
)
BROKEN_OFF = "an exception of the program has ended the wait for a batch"
CHILDREN = "the program has a handler of SIGCHLD, which would see the workers end"
UNASKED = "the program asked for no batch that could show whether the change works"
FALLEN = "the DataLoader has the program's own settings again"

lost: list[str] = []
"""Why settings that were in force are not any longer, without a change that was asked for, in one
line each; the service reports them."""
_broken: dict[LoaderSettings, str] = {}
"""Settings whose workers failed when they were in force. The next change to them is refused, once:
a block of a trial had other settings."""


class Epoch:
    """One iterator of the program that is served here. `line`: the servers in the order in which
    they deliver; only the last one draws indices."""

    def __init__(self, control: LoaderSwitch, outer: Any) -> None:
        """`outer`: the iterator that the program holds. It owns this object."""
        self.control, self.outer = control, weakref.ref(outer)
        self.indices = Indices(outer._sampler_iter)
        self.own = BatchSource(outer, control.program, own=True)
        under_way = outer._send_idx - outer._rcvd_idx if control.program.num_workers else 0
        self.own.feed = outer._sampler_iter = IndexFeed(self.indices, drawn=under_way)
        self.line: deque[BatchSource] = deque([self.own])
        self.over = self.left = False
        """`left`: the program has begun another epoch of the loader, and may come back to this
        one."""
        self.broken_off = False
        """Whether an exception from outside, such as that of a signal handler of the program, has
        ended a call in its middle."""
        self._anew = False
        """Whether the own iterator has batches under way that come later than others that nobody
        has any longer."""
        self._kept_workers = getattr(outer, "_persistent_workers", False)
        outer.__dict__["_gpuconsole_epoch"], outer.__dict__["_next_data"] = self, self.serve
        control.epoch = weakref.ref(self)
        weakref.finalize(self, control.epoch_ended).atexit = False

    @property
    def under_way(self) -> bool:
        return not self.over and not self.left

    def serve(self) -> Any:
        """The next batch, in place of the iterator's own `_next_data`."""
        if self.left:
            self.left = False
            self.back_to_own()
            self.control.refuse_interleaved(self)
        elif self.broken_off:
            self.control.recover(self, BROKEN_OFF)
        if self.control.gone:
            self.back_to_own()
            self.detach()
            self.control.close()
            return self.own.next()[1]
        self.broken_off = True
        try:
            batch = self._serve(self.control)
        except Exception as problem:
            self.broken_off = from_outside(problem)
            raise
        self.broken_off = False
        return batch

    def _serve(self, control: LoaderSwitch) -> Any:
        control.resume(self)
        before = use() if control.watches(self) else None
        while True:
            server = self.line[0]
            try:
                index, batch = server.next()
            except StopIteration:
                if len(self.line) > 1:
                    self.line.popleft()
                    server.idle_since = time.monotonic()
                    continue
                self.end()
                if self.indices.error is not None:
                    raise self.indices.error from None
                raise
            except Exception as problem:
                if server.own or from_outside(problem):
                    raise
                control.recover(self, in_one_line(problem))
                continue
            if server.has_printed():
                server.feed.drawn.appendleft(index)
                control.writes = True
                control.recover(self, WRITES)  # its own process loads the batch again, and prints
                continue
            break
        if before is not None:
            control.note_use(before)
        control.delivered()
        return batch

    def hand_over(self, server: BatchSource) -> None:
        """`server` draws from now on, and delivers after those that have something under way."""
        last, outer = self.line[-1], self.outer()
        last.feed.closed = True
        if server.own:
            self._open_own()
            return
        # noted before `server` draws: what it has drawn is known wherever an exception from outside
        # ends the call
        feed = IndexFeed(self.indices)
        server.feed = feed
        self.line.append(server)
        try:
            server.begin(feed)
        except Exception:
            self.line.pop()
            self.indices.give_back(list(feed.drawn))
            last.feed.closed = False
            raise
        if last.own and last.settings.num_workers and outer is not None:
            # torch must not end its workers when it has nothing to do
            outer._persistent_workers = True

    def _open_own(self) -> None:
        if self.line[-1] is not self.own:
            self.line.append(self.own)
        self.own.feed.closed = False
        self.own.fill()

    def back_to_own(self) -> None:
        """Only the program's own iterator serves, from the first batch on that was not
        delivered."""
        self._give_back()
        anew, self._anew = self._anew, False
        if anew:
            self.own.begin(IndexFeed(self.indices))
        else:
            self._open_own()

    def _give_back(self) -> None:
        """Take the indices back that were drawn in vain. The own iterator keeps what it has under
        way, if that comes first."""
        first = self.line[0] is self.own
        self._anew = self._anew or (not first and self.own in self.line)
        self.indices.give_back(
            [index for server in list(self.line)[first:] for index in server.feed.drawn]
        )
        for server in list(self.line)[first:]:
            server.feed.drawn.clear()
            server.feed.closed = True
        self.line = deque([self.own])

    def end(self) -> None:
        """The epoch is over. Workers go as the program's own would go."""
        self.over = True
        outer = self.outer()
        self.detach()
        if outer is not None and getattr(outer, "_workers", None) and not self._kept_workers:
            outer._shutdown_workers()
        self.control.epoch_ended()

    def detach(self) -> None:
        """The iterator of the program serves without us from now on. Only where its own server is
        alone."""
        self.over, outer = True, self.outer()
        if outer is None:
            return
        if outer._sampler_iter is self.own.feed:
            outer._sampler_iter = self.indices.rest()
        if hasattr(outer, "_persistent_workers"):
            outer._persistent_workers = self._kept_workers
        for name in ("_next_data", "_gpuconsole_epoch"):
            outer.__dict__.pop(name, None)

    def abandon(self) -> None:
        """The program begins another epoch. If it comes back to this one, its own iterator
        serves."""
        self.left = True
        self.own.feed.closed = True
        self._give_back()

    def resume_in_child(self) -> None:
        """In a forked child: the iterator serves without us, from the first batch on that was not
        delivered. The workers are those of the parent."""
        if not self.over:
            self._give_back()
            self.own.feed.closed = False
            self.detach()


class LoaderSwitch:
    """One DataLoader of the program, from the beginning of a change until nothing of it is left.

    `in_force`: the settings that serve or will serve next. `wanted`: the settings that a change
    asks for; None where no change is under way. `held`: the change is only prepared: `wanted` does
    not serve before the next `ask`.
    `gone`: the agent leaves. `writes`: loading prints, or writes files. `in_turn`: the program
    takes batches of two epochs in turn.
    """

    def __init__(self, module: Any, loader: Any, outer: Any, on_done: Callable[[], None]) -> None:
        """`on_done`: called when nothing of a change is left."""
        self._on_done = on_done
        self.program = self.in_force = settings_of(loader)
        self.wanted: LoaderSettings | None = None
        self.held = self.gone = self.writes = self.in_turn = False
        self.failure = ""
        """Why the last change did not take effect."""
        self.epoch: weakref.ref[Epoch] | None = None
        self._recipe = SourceFactory(module, loader, outer)
        self._outer = weakref.ref(outer)
        """The newest iterator."""
        self._asked = 0.0
        self._looks = self._epochs = self._watched = 0
        """Looks since the last batch, and new epochs and watched batches, since the change was
        asked for."""
        self._file = ""
        """A file that the loading of a batch has read, and that stays open."""
        self._received: set[tuple[int, int]] | None = None
        """The connections that have received something at each watched batch; None before the first
        one."""
        self._servers: dict[LoaderSettings, BatchSource] = {}
        self._persistent = bool(loader.persistent_workers)

    @property
    def present(self) -> Epoch | None:
        """The epoch that is under way; None without one."""
        epoch = self.epoch() if self.epoch is not None else None
        return epoch if epoch is not None and epoch.under_way else None

    @property
    def workers(self) -> list[Any]:
        """The workers that serve now."""
        return self.present.line[-1].workers if self.present is not None else []

    @property
    def is_done(self) -> bool:
        """Whether nothing of a change is left."""
        return (
            self.in_force == self.program
            and self.wanted is None
            and not self._servers
            and not self.failure
            and not self.in_turn
        )

    # --- asked for by the training thread ---------------------------------------------------------

    def ask(self, settings: LoaderSettings, outer: Any, held: bool = False) -> None:
        """Begin to change to `settings`, or only to prepare that. `outer`: the newest iterator of
        the loader. Raises ChangeRefused."""
        if why := _broken.pop(settings, ""):
            raise ChangeRefused(f"the last change to these settings ended: {why}")
        if self.in_turn and settings != self.program:
            raise ChangeRefused(INTERLEAVED)
        if settings == self.in_force and self.wanted is None:
            return
        self.failure, self._received = "", None
        self._asked, self._looks, self._epochs, self._watched = time.monotonic(), 0, 0, 0
        self.wanted, self.held = settings, held
        if "_gpuconsole_epoch" not in outer.__dict__:
            self._outer = weakref.ref(outer)
            outer.__dict__["_next_data"] = functools.partial(self._begin, weakref.ref(outer))

    def _begin(self, outer: weakref.ref[Any]) -> Any:
        """Follow the program's own iterator from its next batch on."""
        iterator: Any = outer()
        if self.gone or self.is_done:
            del iterator.__dict__["_next_data"]
            return iterator._next_data()
        self._keep_reset(iterator)
        return Epoch(self, iterator).serve()

    def under_way(self) -> bool:
        """Whether a change is under way. Raises ChangeRefused where the last one failed."""
        epoch = self.present
        if self.wanted is not None:
            self._looks += 1
            if self._looks > UNUSED_LOOKS and time.monotonic() - self._asked > UNUSED_S:
                self._give_up(UNASKED)
            elif self._epochs >= EPOCHS:
                self._give_up(SHORT)
        if self.failure:
            failure, self.failure = self.failure, ""
            raise ChangeRefused(failure)
        return self.wanted is not None or (epoch is not None and len(epoch.line) > 1)

    def is_ready(self) -> bool:
        """Whether `wanted` can serve the next batch that is drawn. Raises ChangeRefused where the
        preparation failed."""
        under_way, epoch = self.under_way(), self.present
        if self.wanted is None:
            return not under_way
        server = self._servers.get(self.wanted)
        own = self._is_own(self.wanted) or self.wanted == self.in_force
        return (
            epoch is not None
            and len(epoch.line) == 1
            and (own or (server is not None and server.is_ready()))
        )

    # --- on the thread that asks for batches ------------------------------------------------------

    def new_iterator(self, loader: Any, plain: Any) -> Any:
        """The iterator of a new epoch. Its workers begin anew, as torch's own do, and see what the
        program has changed between the epochs."""
        self._leave_epoch()
        if not self._persistent:
            self.close()
        outer = plain(loader)
        self._outer = weakref.ref(outer)
        if not self.is_done:
            outer.__dict__["_next_data"] = functools.partial(self._begin, weakref.ref(outer))
        return outer

    def _keep_reset(self, outer: Any) -> None:
        """With persistent workers the program keeps its iterator, and resets it for each epoch."""
        if self._persistent:
            outer.__dict__["_reset"] = functools.partial(self._reset, weakref.ref(outer))

    def _reset(self, outer: weakref.ref[Any], loader: Any, first_iter: bool = False) -> None:
        iterator: Any = outer()
        epoch = iterator.__dict__.get("_gpuconsole_epoch")
        self._leave_epoch()
        if epoch is not None:
            epoch.detach()
        for name in ("_reset", "_next_data"):
            iterator.__dict__.pop(name, None)
        iterator._reset(loader, first_iter)
        if not self.gone and not self.is_done:
            self._keep_reset(iterator)
            iterator.__dict__["_next_data"] = functools.partial(self._begin, outer)

    def _leave_epoch(self) -> None:
        """A new epoch begins. The one before may not have come to its end."""
        self._epochs += 1
        if self.present is not None:
            self.present.abandon()

    def refuse_interleaved(self, epoch: Epoch) -> None:
        """The program comes back to `epoch` after it has begun another one: the program's own
        settings serve from now on, in both."""
        self.in_turn = True
        if self.present is not None and self.present is not epoch:
            self.recover(self.present, INTERLEAVED)
        else:
            self._fall(INTERLEAVED)

    def resume(self, epoch: Epoch) -> None:
        """Take the change one step further. Raises nothing of its own: the program gets its
        batches, whatever goes wrong here."""
        try:
            self._resume(epoch)
        except Exception as problem:
            if from_outside(problem):
                raise
            why = str(problem) if isinstance(problem, ChangeRefused) else in_one_line(problem)
            # at the begin of an epoch: the settings in force have no server
            if epoch.line[-1].settings != self.in_force:
                self.recover(epoch, why)
            else:
                self._give_up(why)

    def _resume(self, epoch: Epoch) -> None:
        if len(epoch.line) > 1 or self.in_turn:  # the last change is not complete
            return
        if epoch.line[0].settings != self.in_force:  # a new epoch
            self._serve_by(self.in_force, epoch)
        elif self.wanted is None:
            self._end_idle(epoch)
        elif self.wanted == self.in_force:
            self.wanted = None
        elif (
            self._is_own(self.wanted)
            or (not self.watches(epoch) and self._server(self.wanted).is_ready())
        ) and not self.held:
            self._serve_by(self.wanted, epoch)
            self.in_force, self.wanted = self.wanted, None

    def _is_own(self, settings: LoaderSettings) -> bool:
        """Whether the program's own iterator serves these settings: its own ones, and page-locked
        memory without workers."""
        return settings == self.program or not settings.num_workers

    def _serve_by(self, settings: LoaderSettings, epoch: Epoch) -> None:
        if not self._is_own(settings):
            epoch.hand_over(self._server(settings))
            return
        outer = epoch.outer()
        if not settings.num_workers and outer is not None:
            outer._pin_memory = settings.pin_memory
        epoch.own.settings = settings
        if epoch.line[-1] is not epoch.own:
            epoch.hand_over(epoch.own)

    def _server(self, settings: LoaderSettings) -> BatchSource:
        if settings not in self._servers:
            self._servers[settings] = self._start(settings)
        return self._servers[settings]

    def _start(self, settings: LoaderSettings) -> BatchSource:
        """New workers. Raises ChangeRefused where they would share what processes cannot share, or
        where the program would notice them."""
        shared = (
            f"the open file {self._file}"
            if self._file
            else "an open socket"
            if self._received
            else ""
        )
        if shared := shared or shared_by(self._recipe.dataset, self._recipe.collate):
            raise ChangeRefused(cannot_share(shared))
        if self.writes:
            raise ChangeRefused(WRITES)
        if handles_children():
            raise ChangeRefused(CHILDREN)
        return self._recipe.server(settings)

    def delivered(self) -> None:
        """The program got a batch."""
        self._looks = 0

    def watches(self, epoch: Epoch) -> bool:
        """Whether to look at what the loading of the next batch reads and writes, in the program's
        own process, before workers start."""
        waits = (
            self.wanted is not None
            and not self._is_own(self.wanted)
            and self.wanted not in self._servers
        )
        alone = len(epoch.line) == 1 and epoch.line[0].own
        return waits and not self.program.num_workers and alone and self._watched < WATCHED

    def note_use(self, before: Use) -> None:
        """A watched batch was loaded."""
        name, received = before.reads()
        self._watched += 1
        self._file = name or self._file
        self._received = received if self._received is None else self._received & received
        self.writes = self.writes or before.wrote()

    def resume_in_child(self) -> None:
        """In a forked child: nothing of the parent's changes goes on."""
        self.gone, self._servers = True, {}
        epoch = self.epoch() if self.epoch is not None else None
        if epoch is not None:
            epoch.resume_in_child()

    # --- ends -------------------------------------------------------------------------------------

    def recover(self, epoch: Epoch, why: str) -> None:
        """The server in force has failed: the program's own settings serve again, from the first
        batch on that was not delivered."""
        failed = [server for server in epoch.line if not server.own]
        epoch.own.settings = self.program
        epoch.back_to_own()
        self._fall(why)
        for server in failed:
            self._servers = {
                settings: kept for settings, kept in self._servers.items() if kept is not server
            }
            server.close(kill=True)

    def _fall(self, why: str) -> None:
        if self.in_force != self.program:
            _broken[self.in_force] = why
            lost.append(f"{FALLEN}: {why}")
            self.in_force = self.program
        if self.wanted is not None:
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self.failure, self.wanted = why, None

    def epoch_ended(self) -> None:
        """The newest epoch is over, or its iterator is gone."""
        if self.present is None and not self._persistent:
            self.close()  # also for a program that then waits for all its children
        if self.is_done:
            self._on_done()

    def _end_idle(self, epoch: Epoch) -> None:
        """End workers that have long had nothing to do, and the change where nothing is left of
        it."""
        for settings, server in list(self._servers.items()):
            if server not in epoch.line and time.monotonic() - server.idle_since > IDLE_S:
                del self._servers[settings]
                server.close()
        if self.is_done and epoch.own.settings == self.program:
            epoch.detach()
            self._on_done()

    def close(self) -> None:
        """End all workers that were started here."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
