"""cloudpickle and dill pickle by value what is without hooks. With the private names that the installed versions have."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

from gpuconsole.agent.hooks import guard, pickles
from gpuconsole.agent.hooks.guard import put, switch
from gpuconsole.agent.hooks.watch import recorder


@pytest.fixture(params=["cloudpickle", "dill"])
def library(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A pickling library that has been hooked, while this thread trains."""
    library = pytest.importorskip(request.param)
    modules = {name: importlib.import_module(name) for name in pickles.HOOKS if name.startswith(f"{request.param}.")}
    functions_before = functions_of(modules)
    (hooks, guard._hooks[:]), (undo, switch.undo[:]) = (list(guard._hooks), []), (list(switch.undo), [])
    for name, module in modules.items():
        pickles.HOOKS[name](module)
    recorder.begin([])
    yield library
    while switch.undo:
        switch.undo.pop()()
    guard.put_back()
    guard._hooks[:], switch.undo[:] = hooks, undo
    recorder.reset()
    assert functions_of(modules) == functions_before


def functions_of(modules: dict[str, ModuleType]) -> list[tuple[str, str, Any]]:
    return [(at, name, value) for at, module in modules.items() for name, value in vars(module).items() if isinstance(value, FunctionType)]


def dumps(library: ModuleType, value: object) -> bytes:
    """As dill pickles where `recurse` is set: with what a function refers to, and nothing else of its module."""
    return bytes(library.dumps(value, recurse=True) if library.__name__ == "dill" else library.dumps(value))


def hooked(function: Callable[..., Any]) -> Callable[..., Any]:
    unpicklable = iter(())

    def hook(*args: Any) -> Any:
        return function(*args), unpicklable

    return hook


def make_class() -> Any:
    class Base:
        def step(self) -> str:
            return "step of the base"

    class Model(Base):
        def __call__(self) -> str:
            return "call of the program"

    return Model


def test_a_class_has_what_it_had_before_each_hook(library: ModuleType) -> None:
    cls = make_class()
    plain = dumps(library, cls)
    put(cls, "__call__", hooked(cls.__call__))
    put(cls, "__call__", hooked(cls.__call__))
    put(cls, "step", hooked(cls.step))
    put(cls.__base__, "step", hooked(cls.__base__.step))
    assert dumps(library, cls) == plain
    assert len(dumps(library, cls())) < len(plain) + 100 and cls()()[0][0] == "call of the program"


def test_what_the_program_has_put_in_place_of_a_hook_is_pickled(library: ModuleType) -> None:
    cls = make_class()
    put(cls, "__call__", hooked(cls.__call__))
    cls.__call__ = lambda self: "new call of the program"
    assert b"new call of the program" in dumps(library, cls)
