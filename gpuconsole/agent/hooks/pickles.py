"""Pickles by value. cloudpickle and dill copy the contents of a class of `__main__`. The hooks here leave the agent out of these copies,
because the process that loads the pickle has no agent."""

from __future__ import annotations

import functools
from typing import Any

from .guard import entry, put, without_hooks, wrappers_without_level

CLOUDPICKLES = ("cloudpickle", "joblib.externals.cloudpickle", "ray.cloudpickle", "pyspark.cloudpickle")
"""cloudpickle, and the copies of it that other libraries bring."""


@wrappers_without_level
def on_library(module: Any) -> None:
    """The private functions that copy the attributes of a class, by name: tests pin them for each library."""
    for name in ("_extract_class_dict", "_get_typedict_type"):
        plain = vars(module).get(name)
        if plain is not None:
            put(module, name, _of_cloudpickle(plain) if name == "_extract_class_dict" else _of_dill(plain))


@wrappers_without_level
def _of_cloudpickle(plain: Any) -> Any:
    @functools.wraps(plain)
    def _extract_class_dict(cls: Any) -> Any:
        attributes = plain(cls)
        leave_out_hooks(cls, attributes)
        return attributes

    return _extract_class_dict


@wrappers_without_level
def _of_dill(plain: Any) -> Any:
    @functools.wraps(plain)
    def _get_typedict_type(cls: Any, attributes: Any, *args: Any, **kwargs: Any) -> Any:
        leave_out_hooks(cls, attributes)
        return plain(cls, attributes, *args, **kwargs)

    return _get_typedict_type


@entry("pickles.class")
def leave_out_hooks(cls: Any, attributes: dict[str, Any]) -> None:
    without_hooks(cls, attributes)


HOOKS = {
    "dill._dill": on_library,
    **{f"{library}.cloudpickle": on_library for library in CLOUDPICKLES},
    # up to version 2 of cloudpickle, this module calls the function by a name of its own
    **{f"{library}.cloudpickle_fast": on_library for library in CLOUDPICKLES},
}
