"""The modules of the program's models. One walk serves all readers, and the next one comes once the number of modules or parameters has changed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

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

        weights = {id(weight): weight for module in modules for weight in module._parameters.values() if weight is not None}
        self._parameters = [weakref.ref(weight) for weight in weights.values()]
        self._layouts = [weakref.ref(weight) for weight in weights.values() if weight.dim() == 4]
        self.linear_parameters = sum(module.weight.numel() for module in modules if type(module) is Linear)
        self.transformer = _shape_of_transformer(next((module.config for module in modules if hasattr(module, "config")), None))
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
    layers, width = (
        next((value for name in names if isinstance(value := getattr(config, name, None), int)), 0) for names in (LAYERS, WIDTHS)
    )
    return {"layers": float(layers), "width": float(width)} if layers and width else {}


_known: tuple[tuple[Any, ...], Structure] | None = None


def structure(watch: Watch) -> Structure:
    """The structure of the modules that the program calls. The look itself calls nothing of the program."""
    global _known
    roots = watch.alive(watch.roots)
    modules = _modules(roots)
    key = (*map(id, roots), len(modules), sum(len(module._parameters) for module in modules))
    if _known is None or _known[0] != key or not _known[1].lives():
        _known = key, Structure(modules)
    _known[1].compiles = any(
        module.__dict__.get("_compiled_call_impl") is not None or type(module).__name__ == "OptimizedModule" for module in modules
    )
    return _known[1]


def _modules(roots: list[Any]) -> list[Any]:
    """The modules within `roots`, each once, in the order of `Module.modules`, which a program may have overridden."""
    found, left = dict[int, Any](), roots[::-1]
    while left:
        module = left.pop()
        if module is not None and id(module) not in found:
            found[id(module)] = module
            if module._modules:
                left.extend(reversed(list(module._modules.values())))
    return list(found.values())
