"""What the agent says of the program: observed knobs, facts about the model, versions, and where
objects were made."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Collection
from typing import Any

from ..free_memory import pci_address
from ..protocol import Knobs
from . import changes
from .changes.loader import training_loader
from .changes.model import MatmulPrecision, convolutions_in_tf32, mode_of
from .evidence import communication
from .guard import ask, unseen
from .memory import local_parts
from .structure import structure
from .watch import cell_of, is_program, module_name, watch

DDP = "DistributedDataParallel"
FRAMEWORKS = (
    "transformers",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "deepspeed",
    "fastai",
    "composer",
    "trl",
    "timm",
)


def script() -> str:
    """The file that Python runs, without its folder; `-c` or the module's name where there is no
    file."""
    main = sys.argv[0] if getattr(sys, "argv", None) else ""
    return os.path.basename(main) or "python"


def place() -> tuple[int, int]:
    """Rank and number of processes: as torch.distributed has them once the program has set it up,
    else as the launcher has set them."""
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    return int(os.environ.get("RANK", "0") or 0), int(os.environ.get("WORLD_SIZE", "1") or 1)


LOOPS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch.loops": "lightning",
    "pytorch_lightning.loops": "lightning",
}
"""The begins of the names of modules that run a training loop, and their frameworks."""


def loop() -> str:
    """The framework whose loop the present step belongs to; empty for a loop of the program's own.
    Called on the training thread, between two steps."""
    frame = sys._getframe()
    while frame is not None:
        name = module_name(frame)
        for module, framework in LOOPS.items():
            if name.startswith(module):
                return framework
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def processes_here() -> int:
    """How many of the job's processes share this host, as the launcher says; all of them where it
    does not say."""
    try:
        return int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return place()[1]


@unseen
def cores() -> str:
    """The cores on which the kernel lets the calling thread run, as `0-31,64-95`; empty where the
    system does not tell them."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    spans: list[list[int]] = []
    for core in sorted(os.sched_getaffinity(0)):
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


@unseen
def observed_knobs() -> Knobs:
    """The settings of the program, under the names of the knob catalogue; only those that were
    seen."""
    knobs: Knobs = {}
    if watch.batch_size:
        knobs["batch_size"] = watch.batch_size
    knobs.update(_loader_knobs())
    knobs.update(changes.observed())
    knobs["gradient_accumulation_steps"] = watch.micro_batches
    knobs["num_threads"] = sys.modules["torch"].get_num_threads()
    if knobs.get("torch_compile") == "off":  # a part of the model may be compiled
        knobs["torch_compile"] = mode_of(structure(watch).compiled_parts)
    _, world_size = place()
    knobs["nproc"] = world_size
    if world_size > 1:
        knobs["sharding"] = communication.sharding()
        buckets = [
            getattr(root, "bucket_bytes_cap", None)
            for root in watch.alive(watch.roots)
            if type(root).__name__ == DDP
        ]
        if buckets and buckets[-1]:
            knobs["bucket_cap_mb"] = buckets[-1] / 2**20
        knobs |= communication.exchanges.knobs()
    return knobs


def _loader_knobs() -> Knobs:
    """Settings of the loader that cannot change; for the others see `changes`."""
    loader, _ = training_loader(watch)
    watch.loader_batch = 0
    if loader is None:
        return {}
    knobs: Knobs = (
        {"persistent_workers": bool(loader.persistent_workers)} if loader.num_workers else {}
    )
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if isinstance(size, int):
        knobs["batch_size"] = watch.loader_batch = size
    return knobs


def fixed_knobs(knobs: Knobs) -> dict[str, str]:
    """Why knobs cannot change while the program runs, under `fixed: NAME`."""
    return {f"fixed: {name}": reason for name in knobs if (reason := changes.why_fixed(name))}


@unseen
def notes(knobs: Knobs) -> dict[str, str]:
    """Why knobs cannot change while the program runs, under `fixed: NAME`; what a change of the
    others does, under `effect: NAME`."""
    fixed = fixed_knobs(knobs)
    effects = changes.effects()
    return fixed | {
        f"effect: {name}": effects[name]
        for name in knobs
        if name in effects and f"fixed: {name}" not in fixed
    }


@unseen
def facts() -> dict[str, float]:
    """Numbers about the model: parameters, trainable parameters, parameters of Linear layers;
    threads, and processes in all and on this host."""
    import torch

    numbers = {
        "threads": float(torch.get_num_threads()),
        "world_size": float(place()[1]),
        "local_processes": float(processes_here()),
    }
    optimizers = watch.alive(watch.optimizers)
    trained = {
        id(p): p
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    if not optimizers:
        trained = {id(weight): weight for weight in watch.alive(watch.weights)}
    model = structure(watch)
    everything = trained | {id(parameter): parameter for parameter in model.parameters}
    if everything:
        numbers["parameters"] = float(
            sum(parameter.numel() for parameter in everything.values()) + model.packed_parameters
        )
        numbers["trainable_parameters"] = float(
            sum(parameter.numel() for parameter in trained.values())
        )
        numbers["trained_tensors"] = float(len(trained))
        numbers["optimizer_groups"] = float(
            sum(len(optimizer.param_groups) for optimizer in optimizers)
        )
        numbers["embeddings"] = float(model.embeddings)
        numbers["linear_parameters"] = float(model.linear_parameters)
        numbers |= _elements(everything.values(), trained.values(), model.packed_parameters)
    if trained and device().startswith("cuda"):
        on_host = sum(
            parameter.numel() for parameter in trained.values() if parameter.device.type == "cpu"
        )
        numbers["optimizer_on_host_ratio"] = on_host / sum(
            parameter.numel() for parameter in trained.values()
        )
    return (
        numbers
        | model.transformer
        | model.experts
        | _dataset()
        | _tf32()
        | _switches()
        | communication.exchanges.facts()
    )


def _elements(
    everything: Collection[Any], trained: Collection[Any], packed: int
) -> dict[str, float]:
    """Return the stored bytes per element of all parameters and of the trained parameters, and the
    share of all elements that this process has. `packed`: several weights are stored in one
    element."""
    here, own = list(local_parts(everything, None)), list(local_parts(trained, None))
    elements, of_trained = sum(part.numel() for part in here), sum(part.numel() for part in own)
    numbers = {}
    if elements:
        size = sum(part.numel() * part.element_size() for part in here)
        numbers["parameter_element_bytes"] = size / (elements + packed)
        numbers["local_parameters_ratio"] = elements / sum(part.numel() for part in everything)
    if of_trained:
        size = sum(part.numel() * part.element_size() for part in own)
        numbers["trained_element_bytes"] = size / of_trained
    return numbers


def _dataset() -> dict[str, float]:
    """What decides whether workers, or indices of a whole batch, are a remedy: the bytes of a
    sample where the training's DataLoader fetches the rows of a TensorDataset one by one; and
    whether an IterableDataset of the program's own divides its samples among workers."""
    loader, _ = training_loader(watch)
    data = sys.modules.get("torch.utils.data")
    if loader is None or data is None:
        return {}
    dataset = loader.dataset
    if issubclass(type(dataset), data.IterableDataset):
        own = [
            kind
            for kind in type(dataset).__mro__
            if is_program(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<")
        ]
        # one of a library divides its samples in its own way
        if not own or type(dataset) is not own[0]:
            return {}
        names = {
            name
            for kind in own
            for value in vars(kind).values()
            for name in getattr(ask(value, "__code__"), "co_names", ())
        }
        return {"loader.unsharded": float("get_worker_info" not in names)}
    plain = (
        type(dataset) is data.TensorDataset
        and loader.batch_sampler is not None
        and loader.collate_fn is data.default_collate
    )
    tensor_class = sys.modules["torch"].Tensor
    if (
        not plain
        or hasattr(type(dataset), "__getitems__")
        or any(type(tensor) is not tensor_class for tensor in dataset.tensors)
    ):
        return {}
    return {
        "loader.row_bytes": float(
            sum(tensor.element_size() * math.prod(tensor.shape[1:]) for tensor in dataset.tensors)
        )
    }


SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1",),
    "NVIDIA_TF32_OVERRIDE": ("0",),
    "NCCL_P2P_DISABLE": ("1",),
    "TORCH_NCCL_BLOCKING_WAIT": ("1",),
}
"""Variables of the environment that slow a job on a GPU, and the values with which they do. Those
of NCCL count for jobs of several processes."""


def _switches() -> dict[str, float]:
    """Whether each variable of SWITCHES is set to such a value, as `environment.NAME`: 1 or 0.
    Empty on a CPU."""
    if not device().startswith("cuda"):
        return {}
    several = place()[1] > 1
    return {
        f"environment.{name}": float(os.environ.get(name) in values)
        for name, values in SWITCHES.items()
        if several or "NCCL" not in name
    }


def _tf32() -> dict[str, float]:
    """Whether products and convolutions in fp32 may use TF32; empty on a CPU."""
    if not device().startswith("cuda"):
        return {}
    return {
        "tf32_matmul": float(MatmulPrecision.is_tf32()),
        "tf32_convolutions": float(convolutions_in_tf32()),
    }


@unseen
def device() -> str:
    """Where the parameters are: `cpu` or `cuda:N`; of several GPUs the one with most of them. Where
    the optimizer keeps its own on the host, as DeepSpeed and FSDP with offloading do, the GPU of
    the model."""
    weights = [
        weight
        for optimizer in watch.alive(watch.optimizers)
        for group in optimizer.param_groups
        for weight in group["params"]
    ] or watch.alive(watch.weights)
    sizes: dict[str, int] = {}
    for weight in weights:
        place = str(weight.device)
        sizes[place] = sizes.get(place, 0) + weight.numel()
    found = max(sizes, key=sizes.__getitem__, default="")
    cuda = sys.modules["torch"].cuda
    if found == "cpu" and cuda.is_initialized():
        on_gpu = next(
            (str(weight.device) for weight in structure(watch).parameters if weight.is_cuda), ""
        )
        # FSDP 2
        shards = any(
            hasattr(root, "set_reshard_after_backward") for root in watch.alive(watch.roots)
        )
        return on_gpu or (f"cuda:{cuda.current_device()}" if shards else found)
    return found


@unseen
def device_uuid() -> str:
    """The uuid of the GPU of the parameters; empty on a CPU, and where torch does not report it."""
    place = device()
    if not place.startswith("cuda"):
        return ""
    return str(getattr(sys.modules["torch"].cuda.get_device_properties(place), "uuid", ""))


@unseen
def device_pci() -> str:
    """The PCI address of the GPU of the parameters, as `domain:bus:device` in hexadecimal; empty on
    a CPU, and where torch does not report it."""
    place = device()
    if not place.startswith("cuda"):
        return ""
    parts = pci_address(sys.modules["torch"].cuda.get_device_properties(place))
    return "" if parts is None else ":".join(f"{part:x}" for part in parts)


@unseen
def job_facts() -> dict[str, Any]:
    """The fields of `model.job.JobFacts`."""
    versions = {}
    for name in FRAMEWORKS:
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", ""))
    return {
        "script": script(),
        "python": platform.python_version(),
        "torch": str(sys.modules["torch"].__version__),
        "device": device(),
        "device_uuid": device_uuid(),
        "device_pci": device_pci(),
        "cores": cores(),
        "frameworks": versions,
        "sites": sites(),
        "lines": {file: lines for file, lines in watch.lines.items() if lines},
        "loop": loop(),
    }


def sites() -> list[dict[str, Any]]:
    """The lines of the program that made loaders, optimizers and DDP modules; those of the objects
    in use come first."""
    loader, _ = training_loader(watch)
    used = [loader, *reversed(watch.alive(watch.optimizers)), *watch.alive(watch.roots)]
    order = {
        id(used_object): place for place, used_object in enumerate(used) if used_object is not None
    }
    places = sorted(watch.made.items(), key=lambda item: order.get(id(item[1].ref()), len(order)))
    return [
        {
            "kind": kind,
            "file": cell_of(file) or file,
            "line": line,
            "function": record.function,
            "library": record.library,
            "again": record.again,
        }
        for (kind, file, line), record in places
    ]
