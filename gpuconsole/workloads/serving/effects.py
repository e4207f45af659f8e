"""Knobs of a model server that do nothing on the one at hand, each with the reason in one line."""

from __future__ import annotations

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs

VLLMS_OWN = {
    "gpu_memory_utilization": "the embedded server takes what max_num_seqs and max_model_len need",
    "enforce_eager": "the embedded server has no CUDA graphs: it always runs eagerly",
    "tensor_parallel_size": "the embedded server runs on one device",
    "num_speculative_tokens": "the embedded server guesses no tokens",
    "api_server_count": "the embedded server answers from the engine's own process",
    "kv_cache_dtype": "the embedded server keeps keys and values in dtype",
}


def without_effect(knobs: Knobs, *, embedded: bool, remote: bool, recorded: bool) -> dict[str, str]:
    """Knobs that somebody has set and that change nothing here, with the reason."""
    found: dict[str, str] = {}
    if embedded:
        found |= {name: why for name, why in VLLMS_OWN.items() if knobs[name] != CATALOGUE[name].default}
        if knobs["quantization"] not in ("none", "int8"):
            found["quantization"] = "the embedded server knows int8 only"
    elif remote:
        why = "the server was started elsewhere, with flags of its own"
        found |= {name: why for name, knob in CATALOGUE.items() if knob.serving and knob.apply == "cold" and name in knobs}
    if recorded:
        why = "the prompts come from a file (--prompts)"
        found |= {name: why for name in ("prompt_tokens", "shared_prefix_ratio") if name in knobs}
    if not float(knobs["request_rate"]):
        why = "a closed loop has no intervals of its own: set request_rate"
        found |= {name: why for name in ("burstiness", "max_concurrency") if knobs[name] != CATALOGUE[name].default}
    return found
