"""What a model server reports about itself, each fact with its source."""

from __future__ import annotations

import msgspec


class Fact(msgspec.Struct, frozen=True):
    """One fact. `source`: where the value was read, for example `/v1/models` or `the server's log`."""

    value: float | str
    source: str


class ServerFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of one model server. None: no source reports the fact.

    `engine`: vllm, sglang, tgi, llama.cpp or gpuconsole (the embedded server). `dtype` is in the server's own words. `max_model_len`: tokens of
    one sequence, prompt and answer together. `block_size`: tokens in one block of the KV cache. `num_blocks`: blocks of the KV cache.
    `num_blocks_override`: the number of blocks that a start argument set; 0: the free memory sets the number. Switches are 1 (on) or 0 (off).
    `kv_cache_tokens`: tokens that fit in the KV cache. `max_num_seqs`: sequences in one iteration. `max_num_batched_tokens`: tokens in one
    iteration. `weight_bytes`: bytes of the weights on the device. `kv_bytes_per_token`: bytes of the keys and values of one token.
    """

    engine: Fact | None = None
    version: Fact | None = None
    model: Fact | None = None
    dtype: Fact | None = None
    kv_cache_dtype: Fact | None = None
    quantization: Fact | None = None
    max_model_len: Fact | None = None
    block_size: Fact | None = None
    num_blocks: Fact | None = None
    num_blocks_override: Fact | None = None
    kv_cache_tokens: Fact | None = None
    max_num_seqs: Fact | None = None
    max_num_batched_tokens: Fact | None = None
    enable_prefix_caching: Fact | None = None
    enable_chunked_prefill: Fact | None = None
    gpu_memory_utilization: Fact | None = None
    tensor_parallel_size: Fact | None = None
    weight_bytes: Fact | None = None
    kv_bytes_per_token: Fact | None = None

    def number(self, name: str) -> float | None:
        """The value of the fact `name` as a number; None where no source reports the fact, or the fact is a text."""
        fact = getattr(self, name)
        return fact.value if fact is not None and isinstance(fact.value, float | int) else None
