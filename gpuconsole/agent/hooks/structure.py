"""The modules of the program's models. One walk serves all readers, and the next one comes once the number of modules or parameters has changed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .guard import ask

if TYPE_CHECKING:
    from .watch import Watch

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
"""Names of a model's configuration for the number of its layers, and for its width."""


class Structure:
    """What a walk over `modules` has found. No parameter is kept alive by it."""

    compiles = False
    """Whether a module is compiled, as far as the last look has shown."""

    def __init__(self, modules: list[Any]) -> None:
        from torch.nn import Linear

        weights = {id(weight): weight for module in modules for weight in members(module, "_parameters") if weight is not None}
        self._parameters = [weakref.ref(weight) for weight in weights.values()]
        self._layouts = [weakref.ref(weight) for weight in weights.values() if weight.dim() == 4]
        self.linear_parameters = sum(module.weight.numel() for module in modules if type(module) is Linear)
        configs = (ask(module, "__dict__", {}).get("config") for module in modules)
        self.transformer = _shape_of_transformer(next((config for config in configs if config is not None), None))
        """Number of layers, and width, of a model that says so in a `config`, as those of Hugging Face and of many scripts do."""

    @property
    def parameters(self) -> list[Any]:
        """The parameters, each once."""
        return [weight for ref in self._parameters if (weight := ref()) is not None]

    @property
    def images(self) -> list[Any]:
        """The parameters with four dimensions: weights of convolutions of images."""
        return [weight for ref in self._layouts if (weight := ref()) is not None]

    def lives(self) -> bool:
        return all(ref() is not None for ref in self._parameters)


def _shape_of_transformer(config: Any) -> dict[str, float]:
    layers, width = (next((value for name in names if isinstance(value := ask(config, name), int)), 0) for names in (LAYERS, WIDTHS))
    return {"layers": float(layers), "width": float(width)} if layers and width else {}


_known: tuple[tuple[Any, ...], Structure] | None = None


def structure(watch: Watch) -> Structure:
    """The structure of the modules that the program calls. The look itself calls nothing of the program."""
    global _known
    roots = watch.alive(watch.roots)
    modules = list(inner_modules(roots))
    key = (*map(id, roots), len(modules), sum(len(members(module, "_parameters")) for module in modules))
    if _known is None or _known[0] != key or not _known[1].lives():
        _known = key, Structure(modules)
    _known[1].compiles = any(
        ask(module, "__dict__", {}).get("_compiled_call_impl") is not None or type(module).__name__ == "OptimizedModule"
        for module in modules
    )
    return _known[1]


def children(module: Any) -> list[Any]:
    """The modules in a module. A module that was made by `__new__` alone has none yet."""
    return [child for child in members(module, "_modules") if child is not None]


def members(module: Any, kind: str) -> list[Any]:
    """What a module keeps as `_modules` or `_parameters`; empty for a module that has no such attribute. No method of the program is called."""
    return list((ask(module, "__dict__", {}).get(kind) or {}).values())


def inner_modules(modules: list[Any]) -> Iterator[Any]:
    """These modules and all in them, each once, in the order of `Module.modules`, which a program may have overridden."""
    seen, waiting = set[int](), modules[::-1]
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting += reversed(children(module))


def parameters_of(root: Any) -> Iterator[Any]:
    """The parameters of a module and of those in it. `Module.parameters` may be one of the program's own."""
    return (weight for module in inner_modules([root]) for weight in members(module, "_parameters") if weight is not None)


def has_parameters(root: Any) -> bool:
    """Whether a module, or one in it, has a parameter."""
    return next(parameters_of(root), None) is not None
