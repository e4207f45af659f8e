"""The modules of the program's models. One walk serves all readers, and the next one comes once the
number of modules or parameters has changed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .guard import ask

if TYPE_CHECKING:
    from .watch import Watch

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
"""Names of a model's configuration for the number of its layers, and for its width."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_EXPERTS = ("num_experts_per_tok", "moe_top_k", "num_selected_experts", "top_k")
"""The same for the experts of a layer (Mixtral, Qwen, DeepSeek, DBRX), and for those of them that
one token goes through."""


class Structure:
    """What a walk over `modules` has found. No parameter is kept alive by it, and none has a weak
    reference: torch.utils.swap_tensors refuses a tensor with one."""

    compiled: Sequence[weakref.ref[Any]] = ()
    """The modules of the last look that are compiled."""

    def __init__(self, modules: list[Any]) -> None:
        from torch.nn import Embedding, EmbeddingBag, Linear

        weights = {
            id(weight): weight
            for module in modules
            for weight in members(module, "_parameters")
            if weight is not None
        }
        holders = {
            id(weight): (weakref.ref(module), name)
            for module in reversed(modules)
            for name, weight in (ask(module, "__dict__", {}).get("_parameters") or {}).items()
        }
        self._parameters = [holders[key] for key in weights]
        """Where each parameter is: a module, and the name in this module."""
        self._layouts = [holders[key] for key, weight in weights.items() if weight.dim() == 4]
        linears = [module for module in modules if issubclass(type(module), Linear)]
        self.embeddings = sum(
            issubclass(type(module), (Embedding, EmbeddingBag)) for module in modules
        )
        """Modules with an embedding table."""
        config = next(
            (
                found
                for module in modules
                if (found := ask(module, "__dict__", {}).get("config")) is not None
            ),
            None,
        )
        stacked = _stacked_experts(list(weights.values()), config)
        self.linear_parameters = sum(map(_weights_of_linear, linears)) + sum(
            weight.numel() for weight in stacked
        )
        self.packed_parameters = sum(
            _weights_of_linear(module) - _stored(module)
            for module in linears
            if _stored(module) < _weights_of_linear(module)
        )
        """Weights that share an element of a tensor with others: two weights of 4 bits in a
        byte."""
        self.transformer = _shape_of_transformer(config)
        """Number of layers, and width, of a model that says so in a `config`, as those of Hugging
        Face and of many scripts do."""
        self.experts = _experts(modules, stacked, config)
        """Of a mixture of experts: the parameters of all experts, and the share of them that one
        token goes through, 0 where no `config` says so."""

    @property
    def compiled_parts(self) -> list[Any]:
        """The modules that torch.compile has compiled."""
        return [module for ref in self.compiled if (module := ref()) is not None]

    @property
    def parameters(self) -> list[Any]:
        """The parameters, each once."""
        return [weight for at in self._parameters if (weight := _held(*at)) is not None]

    @property
    def images(self) -> list[Any]:
        """The parameters with four dimensions: weights of convolutions of images."""
        return [weight for at in self._layouts if (weight := _held(*at)) is not None]

    def lives(self) -> bool:
        return all(_held(*at) is not None for at in self._parameters)


def _held(holder: weakref.ref[Any], name: str) -> Any:
    """Return the parameter that a module has under a name; None if there is none."""
    return (ask(holder(), "__dict__", {}).get("_parameters") or {}).get(name)


def _shape_of_transformer(config: Any) -> dict[str, float]:
    layers, width = _number(config, LAYERS), _number(config, WIDTHS)
    return {"layers": float(layers), "width": float(width)} if layers and width else {}


def _weights_of_linear(module: Any) -> int:
    """The weights of a Linear layer, however they are stored."""
    sizes = ask(module, "in_features", 0), ask(module, "out_features", 0)
    return sizes[0] * sizes[1] if all(type(size) is int for size in sizes) else 0


def _stored(module: Any) -> int:
    """The elements of the weight of a Linear layer whose elements hold several weights each; else
    the number of its weights."""
    weight: Any = next(iter(members(module, "_parameters")), None)
    packed = weight is not None and str(ask(weight, "dtype")) in (
        "torch.uint8",
        "torch.int8",
        "torch.int32",
    )
    return int(weight.numel()) if packed else _weights_of_linear(module)


def _number_of_experts(config: Any) -> tuple[int, int]:
    """The experts of a layer, and those that one token goes through; 0 where a configuration does
    not say so."""
    return _number(config, EXPERTS), _number(config, ACTIVE_EXPERTS)


def _number(config: Any, names: tuple[str, ...]) -> int:
    """Return the first of these settings that is a number; 0 where none is."""
    return next((value for name in names if type(value := ask(config, name)) is int), 0)


def _stacked_experts(weights: list[Any], config: Any) -> list[Any]:
    """The weights that hold the matrices of all experts of a layer, in their first dimension."""
    count, _ = _number_of_experts(config)
    return [
        weight for weight in weights if count > 1 and weight.dim() == 3 and weight.shape[0] == count
    ]


def _experts(modules: list[Any], stacked: list[Any], config: Any) -> dict[str, float]:
    """The facts of a mixture of experts; empty for other models."""
    count, active = _number_of_experts(config)
    lists = [children(module) for module in modules if type(module).__name__ == "ModuleList"]
    alike = [
        experts
        for experts in lists
        if len(experts) == count > 1 and len({type(expert) for expert in experts}) == 1
    ]
    inside = {
        id(weight): weight
        for weight in (
            *stacked,
            *(weight for experts in alike for weight in parameters_of_all(experts)),
        )
    }
    if not (inside and active):
        named = [
            child
            for module in modules
            for name, child in (ask(module, "__dict__", {}).get("_modules") or {}).items()
            if name == "experts"
        ]
        inside, active = (
            {
                id(weight): weight
                for weight in parameters_of_all([child for child in named if child is not None])
            },
            0,
        )
    if not inside:
        return {}
    return {
        "experts_parameters": float(sum(weight.numel() for weight in inside.values())),
        "experts_active_ratio": active / max(1, count),
    }


_known: tuple[tuple[Any, ...], Structure] | None = None


def structure(watch: Watch) -> Structure:
    """The structure of the modules that the program calls. The look itself calls nothing of the
    program."""
    global _known
    roots = watch.alive(watch.roots)
    modules = list(inner_modules(roots))
    key = (
        *map(id, roots),
        len(modules),
        sum(len(members(module, "_parameters")) for module in modules),
    )
    if _known is None or _known[0] != key or not _known[1].lives():
        _known = key, Structure(modules)
    _known[1].compiled = [weakref.ref(module) for module in modules if is_compiled(module)]
    return _known[1]


def is_compiled(module: Any) -> bool:
    """Whether torch.compile has compiled a module."""
    return (
        type(module).__name__ == "OptimizedModule"
        or ask(module, "__dict__", {}).get("_compiled_call_impl") is not None
    )


def children(module: Any) -> list[Any]:
    """The modules in a module. A module that was made by `__new__` alone has none yet."""
    return [child for child in members(module, "_modules") if child is not None]


def members(module: Any, kind: str) -> list[Any]:
    """What a module keeps as `_modules` or `_parameters`; empty for a module that has no such
    attribute. No method of the program is called."""
    return list((ask(module, "__dict__", {}).get(kind) or {}).values())


def inner_modules(modules: list[Any]) -> Iterator[Any]:
    """These modules and all in them, each once, in the order of `Module.modules`, which a program
    may have overridden."""
    seen, waiting = set[int](), modules[::-1]
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting += reversed(children(module))


def parameters_of(root: Any) -> Iterator[Any]:
    """The parameters of a module and of those in it. `Module.parameters` may be one of the
    program's own."""
    return (
        weight
        for module in inner_modules([root])
        for weight in members(module, "_parameters")
        if weight is not None
    )


def parameters_of_all(roots: list[Any]) -> Iterator[Any]:
    """The parameters of several modules and of those in them."""
    return (
        weight
        for module in inner_modules(roots)
        for weight in members(module, "_parameters")
        if weight is not None
    )


def has_parameters(root: Any) -> bool:
    """Whether a module, or one in it, has a parameter."""
    return next(parameters_of(root), None) is not None
