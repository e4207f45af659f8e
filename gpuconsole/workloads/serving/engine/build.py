"""Builds the embedded server from its knobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch
from torch import nn

from gpuconsole.agent.free_memory import free_and_total
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.serving import BLOCK_TOKENS
from gpuconsole.workloads.device import set_threads, without_cuda
from gpuconsole.workloads.serving.engine.core import Core, PrefixCache, Scheduler
from gpuconsole.workloads.serving.engine.model import (
    POSITIONS,
    Decoder,
    in_int8,
    quantize,
    trained_model,
    warm_up,
)
from gpuconsole.workloads.serving.engine.packing import can_pack, pack, reference_rates
from gpuconsole.workloads.serving.engine.server import EngineServer
from gpuconsole.workloads.training.gpt import GPT

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build(
    knobs: Knobs, device_name: str, seed: int, progress: Callable[[str], None]
) -> EngineServer:
    """Build the server. `progress` receives messages during long work. Raises ValueError for
    settings that this device does not support."""
    torch.manual_seed(seed)
    set_threads(int(knobs["omp_num_threads"]))
    if device_name == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{without_cuda('cuda')} (the embedded server knows no other accelerator)")
    device, max_model_len, seats = (
        torch.device(device_name),
        int(knobs["max_model_len"]),
        int(knobs["max_num_seqs"]),
    )
    dtype = DTYPES.get(
        str(knobs["dtype"]), torch.bfloat16 if device.type == "cuda" else torch.float32
    )
    model = make_model(knobs, max_model_len, device, dtype, progress)
    matrices = sum(
        p.numel()
        for module in model.modules()
        if isinstance(module, nn.Linear)
        for p in module.parameters()
    )
    parameters, layers = (
        sum(p.numel() for p in part.parameters()) for part in (model, model.blocks)
    )
    byte_size = dtype.itemsize
    if knobs["quantization"] == "int8":
        model, byte_size = quantized(model, device, dtype, progress), 1
    elif can_pack(device, dtype):
        pack(model)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # free the weights before quantization
    _check_room(seats * max_model_len * Decoder.bytes_per_token(model, dtype), device)
    decoder = Decoder(model, seats, max_model_len, device, dtype)
    blocks = int(knobs["num_gpu_blocks_override"]) or seats * -(-max_model_len // BLOCK_TOKENS)
    kept = blocks  # copies in addition to the KV cache: on a GPU at most half of the free memory
    if device.type == "cuda":
        kept = min(blocks, _free_bytes(device) // 2 // (decoder.kv_bytes_per_token * BLOCK_TOKENS))
    prefixes = PrefixCache(kept if knobs["enable_prefix_caching"] else 0, BLOCK_TOKENS)
    tokens = int(knobs["max_num_batched_tokens"])
    scheduler = Scheduler(
        seats,
        tokens,
        blocks,
        BLOCK_TOKENS,
        chunked=bool(knobs["enable_chunked_prefill"]),
        prefixes=prefixes,
    )
    facts = {
        "parameters": parameters,
        "layer_parameters": layers,
        "matrix_parameters": matrices,
        "weight_bytes": matrices * byte_size,
        "kv_bytes_per_token": decoder.kv_bytes_per_token,
        "kv_cache_tokens": blocks * BLOCK_TOKENS,
        "max_num_seqs": seats,
        "max_model_len": max_model_len,
        "frontend_processes": 0,  # the server handles HTTP between two iterations
        "threads": torch.get_num_threads(),
        "d_model": int(knobs["d_model"]),
        "n_layer": int(knobs["n_layer"]),
        **reference_rates(int(knobs["d_model"]), device, dtype),
    }
    cache = {
        "block_size": str(BLOCK_TOKENS),
        "num_gpu_blocks": str(blocks),
        "enable_prefix_caching": str(bool(knobs["enable_prefix_caching"])),
        "cache_dtype": str(dtype).removeprefix("torch."),
    }
    core = Core(decoder, scheduler, prefixes, max_model_len, seed)
    return EngineServer(core, {name: float(value) for name, value in facts.items()}, cache)


def _free_bytes(device: torch.device) -> int:
    return (
        int(free_and_total(device)[0])
        if device.type == "cuda"
        else psutil.virtual_memory().available
    )


def _check_room(cache_bytes: int, device: torch.device) -> None:
    """Raise ValueError with one line if the KV cache does not fit into memory together with the
    weights."""
    free = _free_bytes(device)
    if cache_bytes > free:
        raise ValueError(
            f"the KV cache takes {cache_bytes / 1e9:.1f} GB (max_num_seqs times max_model_len"
            f" tokens), and {free / 1e9:.1f} GB are free: lower one of them"
        )


def make_model(
    knobs: Knobs,
    max_model_len: int,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[str], None],
) -> GPT:
    """The model with max_model_len positions, on its device and in its precision. Raises ValueError
    if the trained model has fewer positions."""
    width, depth = int(knobs["d_model"]), int(knobs["n_layer"])
    if knobs["weights"] != "trained":
        with device, of_dtype(dtype):  # a large model never exists on the host, nor in fp32
            return GPT(width, depth, max_model_len)
    if max_model_len > POSITIONS:
        raise ValueError(
            f"max_model_len {max_model_len}: the trained model has {POSITIONS} positions"
        )
    return trained_model(width, depth, progress).to(device=device, dtype=dtype)


@contextmanager
def of_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Floating-point tensors that this block creates have this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def quantized(
    model: GPT, device: torch.device, dtype: torch.dtype, progress: Callable[[str], None]
) -> GPT:
    """The model with int8 weights. Raises ValueError where this device cannot compute with them."""
    if device.type == "cuda":
        progress("quantizing to int8 and compiling")
        quantize(model)
        warm_up(model, dtype)
        return model
    if dtype != torch.float32:
        raise ValueError(
            "on a CPU the embedded server supports quantization int8 only with dtype float32"
        )
    return in_int8(model)
