"""The embedded server that a set of knobs describes."""

from __future__ import annotations

import torch

from gpuconsole.model.knobs import Knobs
from gpuconsole.workloads.inference.engine.core import Core
from gpuconsole.workloads.inference.engine.decoder import Decoder
from gpuconsole.workloads.inference.engine.prefixes import PrefixCache
from gpuconsole.workloads.inference.engine.scheduler import Scheduler
from gpuconsole.workloads.inference.engine.server import Server
from gpuconsole.workloads.training.gpt import GPT
from gpuconsole.workloads.training.settings import set_threads

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BLOCK_SIZE = 16
"""Tokens in a KV block, as in vLLM on GPUs."""


def build(knobs: Knobs, device_name: str, seed: int) -> Server:
    """Weights are random, drawn with `seed`: what is learnt does not matter to speed."""
    torch.manual_seed(seed)
    set_threads(int(knobs["omp_num_threads"]))
    device, max_model_len, seats = torch.device(device_name), int(knobs["max_model_len"]), int(knobs["max_num_seqs"])
    dtype = DTYPES.get(str(knobs["dtype"]), torch.bfloat16 if device.type == "cuda" else torch.float32)
    model = GPT(int(knobs["d_model"]), int(knobs["n_layer"]), max_model_len)
    decoder = Decoder(model, seats, max_model_len, device, dtype)
    blocks = int(knobs["num_gpu_blocks_override"]) or seats * -(-max_model_len // BLOCK_SIZE)
    prefixes = PrefixCache(blocks if knobs["enable_prefix_caching"] else 0, BLOCK_SIZE)
    tokens = int(knobs["max_num_batched_tokens"])
    scheduler = Scheduler(seats, tokens, blocks, BLOCK_SIZE, chunked=bool(knobs["enable_chunked_prefill"]), prefixes=prefixes)
    facts = {
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "weight_bytes": float(decoder.weight_bytes),
        "kv_bytes_per_token": float(decoder.kv_bytes_per_token),
        "kv_cache_tokens": float(blocks * BLOCK_SIZE),
        "max_num_seqs": float(seats),
        "max_model_len": float(max_model_len),
        "threads": float(torch.get_num_threads()),
        "d_model": float(knobs["d_model"]),
        "n_layer": float(knobs["n_layer"]),
    }
    cache = {
        "block_size": str(BLOCK_SIZE),
        "num_gpu_blocks": str(blocks),
        "enable_prefix_caching": str(bool(knobs["enable_prefix_caching"])),
        "cache_dtype": str(dtype).removeprefix("torch."),
    }
    return Server(Core(decoder, scheduler, prefixes, max_model_len, seed), facts, cache)
