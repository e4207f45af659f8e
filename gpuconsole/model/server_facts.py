"""What a model server reports about itself, each fact with its source."""

from __future__ import annotations

import msgspec

from gpuconsole.model.knobs.catalogue import CATALOGUE
from gpuconsole.model.knobs.knob import Knobs, Value

KNOB_OF = {"engine": "server", "num_blocks_override": "num_gpu_blocks_override"}
"""Facts whose knob has another name."""
EMBEDDED = "gpuconsole"


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

    def numbers(self) -> dict[str, float]:
        """The facts that are numbers."""
        known = {name: self.number(name) for name in self.__struct_fields__}
        return {name: value for name, value in known.items() if value is not None}

    def settings(self) -> Knobs:
        """The facts that are settings, under the names of the knobs. `server`: the engine; the embedded server is `embedded`."""
        found: Knobs = {}
        for fact_name in self.__struct_fields__:
            name, fact = KNOB_OF.get(fact_name, fact_name), getattr(self, fact_name)
            if fact is not None and name in CATALOGUE:
                found[name] = _as_knob(name, fact.value)
        return found


def _as_knob(name: str, value: float | str) -> Value:
    """`value` in the type of the knob. A word of another engine, for example a quantization, stays as it is."""
    if isinstance(value, str):
        return "embedded" if (name, value) == ("server", EMBEDDED) else value
    kind = CATALOGUE[name].kind
    return bool(value) if kind == "bool" else int(value) if kind == "int" else value
