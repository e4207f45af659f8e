"""Knobs that have no effect on the present model server, each with a one-line reason."""

from __future__ import annotations

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs

VLLMS_OWN = {
    "gpu_memory_utilization": "the embedded server allocates the memory that max_num_seqs and max_model_len need",
    "enforce_eager": "the embedded server has no CUDA graphs: it always runs eagerly",
    "tensor_parallel_size": "the embedded server runs on one device",
    "num_speculative_tokens": "the embedded server has no speculative decoding",
    "api_server_count": "the embedded server answers from the process of the engine",
    "kv_cache_dtype": "the embedded server stores keys and values in dtype",
}

EMBEDDED_OWN = ("d_model", "n_layer", "weights")
"""The model of the embedded server. Another server serves a model of its own."""


def without_effect(knobs: Knobs, *, embedded: bool, remote: bool, recorded: bool) -> dict[str, str]:
    """Knobs that are set and have no effect here, with the reason."""
    found: dict[str, str] = {}
    if embedded:
        found |= {name: why for name, why in VLLMS_OWN.items() if knobs[name] != CATALOGUE[name].default}
        if knobs["quantization"] not in ("none", "int8"):
            found["quantization"] = "the embedded server supports int8 only"
    elif remote:
        why = "gpuconsole did not start this server"
        found |= {name: why for name, knob in CATALOGUE.items() if knob.serving and knob.apply == "cold" and name in knobs}
    if not embedded:
        found |= {
            name: "it belongs to the embedded server; this server serves a model of its own" for name in EMBEDDED_OWN if name in knobs
        }
    if recorded:
        why = "the prompts come from a file (--prompts)"
        found |= {name: why for name in ("prompt_tokens", "shared_prefix_ratio") if name in knobs}
    if not float(knobs["request_rate"]):
        why = "a closed loop has no arrival intervals: set request_rate"
        found |= {name: why for name in ("burstiness", "max_concurrency") if knobs[name] != CATALOGUE[name].default}
    return found
