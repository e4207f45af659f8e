"""The knobs of serving workloads, by group: the model server's, by vLLM's names, and the load's."""

from __future__ import annotations

import msgspec

from gpuconsole.model.knob import Knob

_SERVER = (
    Knob(
        "server",
        "choice",
        "the embedded server, or vLLM as a child (see --vllm-python); --url attaches to one that runs already",
        apply="cold",
        choices=("embedded", "vllm"),
        default="embedded",
        examples=("embedded", "vllm"),
    ),
    Knob("max_num_seqs", "int", "most sequences in one iteration", apply="cold", low=1, high=65536, default=32, examples=(8, 32, 256)),
    Knob(
        "max_num_batched_tokens",
        "int",
        "most tokens in one iteration, of prompts and of output",
        apply="cold",
        low=1,
        high=1_048_576,
        unit="tokens",
        default=2048,
        examples=(512, 2048, 8192),
    ),
    Knob(
        "max_model_len",
        "int",
        "longest prompt and output together",
        apply="cold",
        low=8,
        high=1_048_576,
        unit="tokens",
        default=1024,
        examples=(1024, 4096),
    ),
    Knob(
        "num_gpu_blocks_override",
        "int",
        "KV cache in blocks (16 tokens in the embedded server); 0: as much as there is room for",
        apply="cold",
        low=0,
        high=10_000_000,
        unit="blocks",
        default=0,
        examples=(0, 128),
    ),
    Knob(
        "gpu_memory_utilization",
        "float",
        "share of the device's memory that the server may take (vLLM)",
        apply="cold",
        low=0.05,
        high=1.0,
        default=0.9,
        examples=(0.8, 0.9, 0.95),
    ),
    Knob(
        "enable_prefix_caching",
        "bool",
        "keep the KV blocks of prompts, for later ones that begin alike",
        apply="cold",
        default=True,
        examples=(True, False),
    ),
    Knob(
        "enable_chunked_prefill",
        "bool",
        "split long prompts over iterations, between which others decode",
        apply="cold",
        default=True,
        examples=(True, False),
    ),
    Knob("enforce_eager", "bool", "no CUDA graphs, no compilation (vLLM)", apply="cold", default=False, examples=(False, True)),
    Knob(
        "tensor_parallel_size",
        "int",
        "GPUs that share each layer's matrices (vLLM)",
        apply="cold",
        low=1,
        high=64,
        default=1,
        examples=(1, 2, 8),
    ),
    Knob(
        "quantization",
        "choice",
        "weights as they are, or in fewer bits",
        apply="cold",
        choices=("none", "int8", "fp8", "awq", "gptq", "bitsandbytes"),
        changes_output=True,
        default="none",
        examples=("none", "int8", "fp8"),
    ),
    Knob(
        "kv_cache_dtype",
        "choice",
        "keys and values in the model's precision, or in 8 bits (vLLM)",
        apply="cold",
        choices=("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
        changes_output=True,
        default="auto",
        examples=("auto", "fp8"),
    ),
    Knob(
        "dtype",
        "choice",
        "precision of weights and arithmetic",
        apply="cold",
        choices=("auto", "float32", "bfloat16", "float16"),
        changes_output=True,
        default="auto",
        examples=("auto", "float32", "bfloat16"),
    ),
    Knob(
        "weights",
        "choice",
        "of the embedded model: random (its speed is real, what it writes is not), or trained for a minute, once, and kept",
        apply="cold",
        choices=("random", "trained"),
        default="random",
        examples=("random", "trained"),
    ),
    Knob(
        "omp_num_threads",
        "int",
        "CPU threads of the server (OMP_NUM_THREADS); 0: all cores but one",
        apply="cold",
        low=0,
        high=1024,
        default=0,
        examples=(0, 1),
    ),
)

_LOAD = (
    Knob(
        "concurrency",
        "int",
        "users of the closed loop: each sends its next request when the last is answered",
        low=1,
        high=100_000,
        default=8,
        examples=(1, 8, 32),
    ),
    Knob(
        "request_rate",
        "float",
        "requests that fall due per second, whatever becomes of them (open loop); 0: closed loop",
        low=0,
        high=1_000_000,
        unit="/s",
        default=0.0,
        examples=(0.0, 4.0),
    ),
    Knob(
        "burstiness",
        "float",
        "shape of the gamma distribution of the open loop's intervals: 1 Poisson, below in bursts, above even",
        low=0.01,
        high=1000,
        default=1.0,
        examples=(1.0, 0.2),
    ),
    Knob(
        "max_concurrency",
        "int",
        "most requests of the open loop on their way; others wait in the client",
        low=1,
        high=100_000,
        default=1000,
        examples=(64, 1000),
    ),
    Knob("prompt_tokens", "int", "tokens of a prompt", low=1, high=1_000_000, unit="tokens", default=64, examples=(64, 1024)),
    Knob("output_tokens", "int", "tokens asked for", low=1, high=1_000_000, unit="tokens", default=64, examples=(32, 64, 256)),
    Knob(
        "length_spread",
        "float",
        "lengths are drawn evenly between (1 - this) and (1 + this) times the values above",
        low=0,
        high=0.95,
        default=0.0,
        examples=(0.0, 0.5),
    ),
    Knob(
        "shared_prefix_ratio",
        "float",
        "share of each prompt that is the same in all: a system prompt",
        low=0,
        high=1,
        default=0.0,
        examples=(0.0, 0.8),
    ),
    Knob(
        "endpoint", "choice", "which API is asked", choices=("completions", "chat"), default="completions", examples=("completions", "chat")
    ),
)


def _serving(knobs: tuple[Knob, ...]) -> tuple[Knob, ...]:
    return tuple(msgspec.structs.replace(knob, serving=True) for knob in knobs)


SERVING_GROUPS = {"server": _serving(_SERVER), "load": _serving(_LOAD)}
SERVING_KNOBS = SERVING_GROUPS["server"] + SERVING_GROUPS["load"]
