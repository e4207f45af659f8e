"""Borders by sys.monitoring (PEP 669), on Python 3.12 and newer.

Python itself calls the agent where one of the functions of a table begins and returns. No name of
torch or of the program is replaced, and no frame of the agent stands between two frames of the
program. Python has six ids for tools; the agent takes one that is free, and does without where none
is.

A function can also end by an exception. Python shows that to a tool only for all functions
together, at a cost to each exception of the program. So the end of `record_function`, which torch
has in its functions, stands for it; elsewhere the next border shows that a call is over: see
`Opened.begin`.
"""

from __future__ import annotations

import functools
import importlib._bootstrap
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from ..data import DRAW, NEXT, draws, iterators
from ..guard import switch
from ..optimizer import STEP, end_seen
from ..passes import FORWARD_PASS, MAX_TRAINED, begin_pass, may_begin_pass, state
from ..recorder import FORWARD, MAY_HOLD_FORWARD, UNMARKED, get_ident
from ..threads import TICK
from ..watch import recorder
from .border import Border, NotedCall, code_of, opened

TOOLS = (4, 3, 5)
"""Ids of tools. 0 to 2 belong to debuggers, coverage and profilers; small tools of others take 3 to
5 too."""
TOOL_NAME = "gpuconsole"
MAX_CALLS = 256
"""Calls of modules in one step that are looked at: a program may call thousands of small modules by
itself. Later ones are not seen in this step."""
MAX_FORWARDS = 256
"""Codes of `forward` functions whose returns are seen. A program may make classes with new code
again and again. Of the classes after these, the agent sees the return of the call of the module."""
MAX_RETURNS = 64
"""Returns in one pass of a `forward` that a root and modules within it share. With more, its
returns are not seen, and a pass ends at the next border."""
LEVELS = 5
"""Frames from the `forward` of a module to the call of the module: torch's own functions, and those
of its hooks."""
AUTOGRAD_PROFILER, MODULES = "torch.autograd.profiler", "torch.nn.modules.module"
IMPORT = importlib._bootstrap._find_and_load_unlocked.__code__  # type: ignore[attr-defined]


class Monitor:
    """One per process: the tool, and the functions whose calls it sees."""

    def __init__(self, imported: Callable[[str, Any], None]) -> None:
        """`imported` is called with the name of each module that the program imports, and the
        module."""
        self._imported = imported
        self._tool: int | None = None
        self._borders: dict[int, Border] = {}
        self._notes: dict[int, NotedCall] = {}
        self._codes: list[CodeType] = []
        """All codes with events: an identity is valid as long as its object exists."""
        self._hot: list[tuple[CodeType, int, int]] = []
        """The codes of the borders that each step has, with their events in a marked step and in
        one that is only counted."""
        self._forwards: dict[int, int] = {}
        """Of the `forward` functions of roots, by the identity of their code: the returns within
        the pass under way. -1: they are not seen any longer."""
        self._forward_of: dict[int, tuple[int, CodeType | None]] = {}
        """The identity of the class of a root, and the code of its pass, by the identity of the
        root. Forgotten where the end of a call was not seen."""
        self._calls: CodeType | None = None
        """The code of the call of a module."""
        self._exit: CodeType | None = None
        """The code that ends `record_function`."""
        self._armed = 0
        """The events of the call of a module that are seen now. PY_START: the next call of a
        module, which switches it off, so that calls within it cost nothing."""
        self._called = self._step = 0
        """Calls of modules that were seen in the step `_step`."""

    def begin(self) -> bool:
        """Take an id, and see what the program imports. Returns False where no id is free."""
        monitoring = sys.monitoring
        self._tool = next((tool for tool in TOOLS if monitoring.get_tool(tool) is None), None)
        if self._tool is None:
            return False
        monitoring.use_tool_id(self._tool, TOOL_NAME)
        monitoring.register_callback(self._tool, START, self._began)
        monitoring.register_callback(self._tool, RETURN, self._ended)
        self._see(IMPORT, RETURN)
        self._see(TICK, START)
        recorder.marks, state.sees_modules = self._mark, True
        return True

    def see(self, module: Any, borders: Iterable[Border | NotedCall]) -> None:
        """See the functions `borders` of a module that the program has imported."""
        name = module.__name__
        if (
            name == AUTOGRAD_PROFILER
            and (code := code_of(module, "record_function.__exit__")) is not None
        ):
            self._exit = code
            self._see(code, START)
            self._hot.append((code, START, 0))
        if name == MODULES:
            self._calls = code_of(module, FORWARD_PASS.path)
        for border in borders:
            inner = border.inner if isinstance(border, Border) else ()
            code = code_of(module, border.path, inner)
            if code is None or id(code) in self._borders or id(code) in self._notes:
                continue
            if isinstance(border, NotedCall):
                self._notes[id(code)] = border
                self._see(code, RETURN)
                continue
            self._borders[id(code)] = border
            events = START if border.records else START | RETURN
            if border is NEXT:
                events = START | RETURN
            if border is DRAW:
                events = 0
                draws[:] = [functools.partial(self._see_draws, code)]
            self._see(code, events)
            if border.hot:
                self._hot.append(
                    (
                        code,
                        START if border.records else START | RETURN,
                        RETURN if border is STEP else 0,
                    )
                )

    def end(self) -> None:
        """See nothing any longer, and give the id of the tool back."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        recorder.marks = None
        for code in self._codes:
            sys.monitoring.set_local_events(tool, code, 0)
        if self._calls is not None:
            sys.monitoring.set_local_events(tool, self._calls, 0)
        for event in (START, RETURN):
            sys.monitoring.register_callback(tool, event, None)
        sys.monitoring.free_tool_id(tool)
        opened.forget()

    def _see(self, code: CodeType, events: int) -> None:
        self._codes.append(code)
        sys.monitoring.set_local_events(self._tool, code, events)  # type: ignore[arg-type]

    # --- what Python calls ------------------------------------------------------------------------

    def _began(self, code: CodeType, offset: int) -> None:
        """A function begins."""
        if self._tool is None:
            return
        if code is TICK:  # in the thread of the sampler, whose function catches what goes wrong
            names = sys._getframe(1).f_locals
            names["self"].run_unseen(names["over"])
            return
        opened.present = None
        try:
            thread = recorder.thread
            if code is self._calls:
                if not thread:
                    self._arm(0)
                elif thread == get_ident():
                    self._call(sys._getframe(1))
                return
            if code is self._exit:
                if opened.records and thread == get_ident():
                    caller = sys._getframe(1).f_back
                    if caller is not None and opened.ends_here(caller):
                        self._seek_call()
                return
            border = self._borders.get(id(code))
            if border is None:
                return
            if thread and thread != get_ident():
                if border.elsewhere is not None:
                    border.elsewhere()
            elif border.part not in switch.parts_off:
                opened.begin(sys._getframe(1), border)
        except BaseException as problem:
            if _off(opened.present, problem):
                raise

    def _ended(self, code: CodeType, offset: int, result: Any) -> None:
        """A function returns."""
        if self._tool is None:
            return
        note: NotedCall | None = None
        opened.present = None
        try:
            key = id(code)
            border = self._borders.get(key)
            if border is None and key not in self._forwards:
                if code is IMPORT:
                    self._imported(sys._getframe(1).f_locals["name"], result)
                    return
                note = self._notes.get(key)
                if note is not None:
                    if note.part not in switch.parts_off:
                        note.call(sys._getframe(1), result)
                    return
            thread = recorder.thread
            if thread and thread != get_ident():
                return
            if border is not None:
                frame = sys._getframe(1)
                if border is STEP and recorder.counted:
                    if opened:
                        # A save, a log call or a collective has raised an exception. In a counted
                        # step no other border shows that its call is over.
                        segments = len(recorder.codes)
                        opened.end_lost(frame)
                        if len(recorder.codes) > segments:
                            recorder.codes[-1] = UNMARKED
                    if not opened:
                        end_seen(frame)
                        return
                if border is NEXT:
                    self._note_batch(code, frame, result)
                elif opened.end(frame):
                    self._seek_call()
                    return
            if key in self._forwards or code is self._calls:
                self._returned(code, sys._getframe(1))
        except BaseException as problem:
            if _off(note or opened.present, problem):
                raise

    def _note_batch(self, code: CodeType, frame: FrameType, batch: Any) -> None:
        """A loader has given a batch: what it returns is seen until its size is known."""
        if (
            recorder.thread
            and "data" not in switch.parts_off
            and iterators.note_result(frame.f_locals["self"], batch)
        ):
            sys.monitoring.set_local_events(self._tool, code, START)  # type: ignore[arg-type]

    def _see_draws(self, code: CodeType, seen: bool) -> None:
        """Whether the calls of DRAW, which run `code`, are seen from now on."""
        if self._tool is not None:
            sys.monitoring.set_local_events(self._tool, code, START | RETURN if seen else 0)

    # --- passes -----------------------------------------------------------------------------------

    def _arm(self, events: int) -> None:
        """See these events of the call of a module."""
        if events != self._armed and self._calls is not None:
            self._armed = events
            sys.monitoring.set_local_events(self._tool, self._calls, events)  # type: ignore[arg-type]

    def _seek_call(self) -> None:
        """A border has ended: the next call of a module may be a pass."""
        if recorder.thread and not recorder.counted and recorder.stack[-1] in MAY_HOLD_FORWARD:
            if self._step != recorder.index:
                self._step, self._called = recorder.index, 0
            if self._called < MAX_CALLS:
                self._arm(START)

    def _call(self, frame: FrameType) -> None:
        """Handle a call of a module that lies in no other call of a module. In the step whose
        operators are counted, also handle the calls within such a call."""
        if state.counting is not None and recorder.stack[-1] == FORWARD:
            state.counting.called(frame)
            return
        self._arm(0)
        self._called += 1
        opened.end_lost(frame)
        if not may_begin_pass():
            return
        names = frame.f_locals
        module = names["self"]
        if not begin_pass(module, names["args"], names["kwargs"]):
            self._seek_call()
            return
        opened.add(frame, FORWARD_PASS)
        self._see_forward(module)
        if state.counting is not None:
            self._arm(self._armed | START)

    def _see_forward(self, module: Any) -> None:
        """See where the pass of a module ends: where its `forward` returns; where that is no Python
        function, where the call of the module returns."""
        if opened.lost or len(self._forward_of) >= MAX_TRAINED:
            self._forward_of.clear()
            opened.lost = False
        known = self._forward_of.get(id(module))
        if known is None or known[0] != id(type(module)):
            known = self._forward_of[id(module)] = id(type(module)), _forward_code(module)
        code = known[1]
        if code is None or (id(code) not in self._forwards and len(self._forwards) >= MAX_FORWARDS):
            self._arm(RETURN)
        elif id(code) not in self._forwards:
            self._forwards[id(code)] = 0
            if id(code) not in self._borders:
                self._see(code, RETURN)
                self._hot.append((code, RETURN, 0))
        elif self._forwards[id(code)] > 0:
            self._forwards[id(code)] = 0

    def _returned(self, code: CodeType, frame: FrameType) -> None:
        """A `forward`, or the call of a module, returns. The pass under way ends where it is that
        of the root."""
        if code is self._calls:
            if opened.is_last(frame, FORWARD_PASS):
                self._arm(0)
                opened.end(frame)
                self._seek_call()
            return
        around: FrameType | None = frame
        for _ in range(LEVELS):
            if around is None:
                return
            if opened.is_last(around, FORWARD_PASS):
                self._arm(0)
                opened.end(around)
                self._seek_call()
                return
            around = around.f_back
        count = self._forwards.get(id(code), 0)
        if count >= 0:
            self._forwards[id(code)] = count + 1
            if count >= MAX_RETURNS and id(code) not in self._borders:
                self._forwards[id(code)] = -1
                self._hot.remove((code, RETURN, 0))
                sys.monitoring.set_local_events(self._tool, code, 0)  # type: ignore[arg-type]

    # --- steps that are only counted --------------------------------------------------------------

    def _mark(self, marked: bool) -> None:
        """Whether the step that begins now is marked: else only the steps of the optimizer, and
        what is rare, are seen."""
        for code, events, counted in self._hot:
            sys.monitoring.set_local_events(self._tool, code, events if marked else counted)  # type: ignore[arg-type]
        # the step may begin with a call of the model, before any other border
        self._step, self._called = recorder.index, 0
        self._arm(START if marked else 0)


def _off(at: Border | NotedCall | None, problem: BaseException) -> bool:
    """Switch off the part of the agent whose border has failed, or the agent. Returns whether
    `problem` is not the agent's."""
    if at is None:
        return switch.off("borders", problem)
    place = f"{at.part or 'borders'}.{at.path}"
    return switch.part_off(place, problem) if at.part else switch.off(place, problem)


def _forward_code(module: Any) -> CodeType | None:
    """The code that runs in the call of a module: of its compiled call, or of its `forward`. None
    where that is no Python function."""
    own = object.__getattribute__(module, "__dict__")
    function = own.get("_compiled_call_impl") or own.get("forward")
    if function is None:
        function = next(
            (vars(kind)["forward"] for kind in type(module).__mro__ if "forward" in vars(kind)),
            None,
        )
    while isinstance(function, (MethodType, staticmethod)):
        function = function.__func__
    return function.__code__ if isinstance(function, FunctionType) else None


if sys.version_info >= (3, 12):
    START, RETURN = sys.monitoring.events.PY_START, sys.monitoring.events.PY_RETURN
