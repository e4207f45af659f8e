"""Which loaders the training loop cannot reach: a change of their workers needs no permission of the user.

Python lets a program change almost everything that a dataset reads: its attributes, its lists, globals, files. So this list is short, and everything
that is not on it asks. Not on it, for example: TensorDataset (a write through `.data` or a numpy view of a tensor leaves no trace), ImageFolder and the
other file datasets of torchvision (`samples` and `targets` are lists, and files can be written), random transforms, lists, and all classes of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ..guard import from_outside


class Known(NamedTuple):
    """`name`: of the class or the function, with its module. `holds`: whether this object of the class is one that the loop cannot reach."""

    name: str
    reason: str
    holds: Callable[[Any], bool] = lambda given: True


def _is_plain_arrow(dataset: Any) -> bool:
    kwargs, features = dataset._format_kwargs, dataset._info.features
    return dataset._format_type in (None, "torch", "numpy") and not kwargs and all(map(_is_plain_feature, features.values()))


def _is_plain_feature(feature: Any) -> bool:
    """Whether a column needs nothing but its table: an image or a sound may lie in a file."""
    if type(feature) is dict:
        return all(map(_is_plain_feature, feature.values()))
    if type(feature).__name__ in ("List", "LargeList", "Sequence"):
        return _is_plain_feature(feature.feature)
    return type(feature).__name__ in ("Value", "ClassLabel")


def _has_no_generator(sampler: Any) -> bool:
    return sampler.generator is None


def _has_known_sampler(batches: Any) -> bool:
    return is_in(SAMPLERS, batches.sampler)


DATASETS = (
    Known("builtins.range", "the numbers of a range never change"),
    Known(
        "datasets.arrow_dataset.Dataset", "a table of Arrow cannot be written: map, filter and select give another dataset", _is_plain_arrow
    ),
)
SAMPLERS = (
    Known("torch.utils.data.sampler.SequentialSampler", "its order is that of the dataset"),
    Known("torch.utils.data.sampler.RandomSampler", "it draws from a generator of its own, which nobody else has", _has_no_generator),
    Known("torch.utils.data.distributed.DistributedSampler", "its order is fixed when the epoch begins"),
    Known("torch.utils.data.sampler.BatchSampler", "it groups what its sampler gives", _has_known_sampler),
)
COLLATES = (
    Known("torch.utils.data._utils.collate.default_collate", "it uses the samples only"),
    Known("torch.utils.data._utils.collate.default_convert", "it uses the samples only"),
    Known("transformers.data.data_collator.default_data_collator", "it uses the samples only"),
)


def is_in(table: tuple[Known, ...], given: Any) -> bool:
    """Whether an object, or a function, is of a row of `table`. A subclass is not: it may read what it wants."""
    named = given if hasattr(given, "__qualname__") else type(given)
    row = next((row for row in table if row.name == f"{named.__module__}.{named.__qualname__}"), None)
    return row is not None and row.holds(given)


def is_out_of_reach(loader: Any) -> bool:
    """Whether the training loop cannot reach what the samples of `loader` come from."""
    module = sys.modules.get("torch.utils.data.dataloader")
    try:
        return (
            module is not None
            and type(loader) is module.DataLoader
            and loader.worker_init_fn is None
            and is_in(DATASETS, loader.dataset)
            and is_in(SAMPLERS, loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
            and is_in(COLLATES, loader.collate_fn)
        )
    except Exception as problem:  # another version of a library: then the user is asked
        if from_outside(problem):
            raise
        return False
