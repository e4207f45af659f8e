"""The knobs of serving workloads, by group: the model server (with vLLM's names) and the load."""

from __future__ import annotations

import msgspec

from gpuconsole.model.knobs.knob import Knob, Knobs

_SERVER = (
    Knob(
        "server",
        "choice",
        (
            "the embedded server, or vLLM as a child process (see --vllm-python); --url uses a"
            " server that runs already"
        ),
        apply="cold",
        choices=("embedded", "vllm"),
        default="embedded",
        examples=("embedded", "vllm"),
    ),
    Knob(
        "max_num_seqs",
        "int",
        "maximum number of sequences in one iteration; 0: the server's own choice",
        apply="cold",
        lowered_live=True,
        low=0,
        high=65536,
        default=32,
        examples=(8, 32, 256),
        words={
            "0": "let the server choose how many sequences run at a time",
            "": "let {} sequences run at a time",
        },
    ),
    Knob(
        "max_num_batched_tokens",
        "int",
        "maximum number of prompt and output tokens in one iteration; 0: the server's own choice",
        apply="cold",
        lowered_live=True,
        low=0,
        high=1_048_576,
        unit="tokens",
        default=2048,
        examples=(512, 2048, 8192),
        words={
            "0": "let the server choose the tokens of an iteration",
            "": "let an iteration process {} tokens",
        },
    ),
    Knob(
        "max_model_len",
        "int",
        "maximum length of prompt plus output",
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
        (
            "size of the KV cache in blocks of 16 tokens (vLLM: as many tokens in blocks of its own"
            " size); 0: all free memory"
        ),
        apply="cold",
        low=0,
        high=10_000_000,
        unit="blocks",
        default=0,
        examples=(0, 128),
        words={"0": "let the KV cache use all free memory", "": "give the KV cache {} blocks"},
    ),
    Knob(
        "gpu_memory_utilization",
        "float",
        "share of the device memory that the server may use (vLLM)",
        apply="cold",
        low=0.05,
        high=1.0,
        default=0.9,
        examples=(0.8, 0.9, 0.95),
        words="let the server use {} of the GPU memory",
    ),
    Knob(
        "enable_prefix_caching",
        "bool",
        "keep the KV blocks of prompts for later prompts with the same beginning",
        apply="cold",
        default=True,
        examples=(True, False),
        words={
            "true": "reuse the KV cache of shared prompt prefixes",
            "false": "do not reuse prompt prefixes",
        },
    ),
    Knob(
        "enable_chunked_prefill",
        "bool",
        "process a long prompt in several iterations, so that other requests decode in between",
        apply="cold",
        default=True,
        examples=(True, False),
        words={"true": "split long prompts", "false": "do not split long prompts"},
    ),
    Knob(
        "enforce_eager",
        "bool",
        "no CUDA graphs and no compilation (vLLM)",
        apply="cold",
        default=False,
        examples=(False, True),
        words={"false": "use CUDA graphs and compilation", "true": "run without CUDA graphs"},
    ),
    Knob(
        "tensor_parallel_size",
        "int",
        "GPUs among which each layer's matrices are split (vLLM)",
        apply="cold",
        low=1,
        high=64,
        default=1,
        examples=(1, 2, 8),
        words={"1": "do not split layers among GPUs", "": "split each layer among {} GPUs"},
    ),
    Knob(
        "api_server_count",
        "int",
        "processes that accept requests and convert tokens to text (vLLM)",
        apply="cold",
        low=1,
        high=64,
        default=1,
        examples=(1, 2, 4),
        words="use {} API server processes",
    ),
    Knob(
        "num_speculative_tokens",
        "int",
        (
            "tokens that the n-gram method proposes from earlier text; one pass checks them (vLLM);"
            " 0: none"
        ),
        apply="cold",
        low=0,
        high=64,
        default=0,
        examples=(0, 4),
    ),
    Knob(
        "quantization",
        "choice",
        "weights in the model's precision, or quantized to fewer bits",
        apply="cold",
        choices=("none", "int8", "fp8", "awq", "gptq", "bitsandbytes"),
        changes_output=True,
        default="none",
        examples=("none", "int8", "fp8"),
        words={"none": "use weights in full precision", "": "quantize the weights to {}"},
    ),
    Knob(
        "kv_cache_dtype",
        "choice",
        "precision of the KV cache: the model's, or 8 bits (vLLM)",
        apply="cold",
        choices=("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
        changes_output=True,
        default="auto",
        examples=("auto", "fp8"),
        words={
            "auto": "store the KV cache in the model's precision",
            "": "store the KV cache in {}",
        },
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
        (
            "weights of the embedded model: random (real speed, meaningless text), or trained once"
            " for a minute and cached"
        ),
        apply="cold",
        choices=("random", "trained"),
        default="random",
        examples=("random", "trained"),
    ),
    Knob(
        "omp_num_threads",
        "int",
        "CPU threads of the server (OMP_NUM_THREADS); 0: all cores except one",
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
        "users of the closed loop: each user sends the next request after the answer to the last",
        low=1,
        high=100_000,
        default=8,
        examples=(1, 8, 32),
        words="send {} requests at a time",
    ),
    Knob(
        "request_rate",
        "float",
        (
            "requests per second that the client sends, independent of the answers (open loop); 0:"
            " closed loop"
        ),
        low=0,
        high=1_000_000,
        unit="/s",
        default=0.0,
        examples=(0.0, 4.0),
        words={"0": "send the next request after each answer", "": "send {} requests per second"},
    ),
    Knob(
        "burstiness",
        "float",
        (
            "shape of the gamma distribution of intervals in the open loop: 1 is Poisson, less is"
            " burstier, more is more even"
        ),
        low=0.01,
        high=1000,
        default=1.0,
        examples=(1.0, 0.2),
    ),
    Knob(
        "max_concurrency",
        "int",
        "maximum number of open requests in the open loop; further requests wait in the client",
        low=1,
        high=100_000,
        default=1000,
        examples=(64, 1000),
    ),
    Knob(
        "prompt_tokens",
        "int",
        "tokens in a prompt",
        low=1,
        high=1_000_000,
        unit="tokens",
        default=64,
        examples=(64, 1024),
        words="send prompts of {} tokens",
    ),
    Knob(
        "output_tokens",
        "int",
        "tokens that a request asks for",
        low=1,
        high=1_000_000,
        unit="tokens",
        default=64,
        examples=(32, 64, 256),
    ),
    Knob(
        "length_spread",
        "float",
        (
            "prompt and output lengths are uniform between (1 - length_spread) and (1 +"
            " length_spread) times their settings"
        ),
        low=0,
        high=0.95,
        default=0.0,
        examples=(0.0, 0.5),
    ),
    Knob(
        "shared_prefix_ratio",
        "float",
        "share of each prompt that all prompts have in common, as with a system prompt",
        low=0,
        high=1,
        default=0.0,
        examples=(0.0, 0.8),
    ),
    Knob(
        "endpoint",
        "choice",
        "API that the client calls; auto: completions, or chat where the server has only that",
        choices=("auto", "completions", "chat"),
        default="auto",
        examples=("completions", "chat"),
    ),
)


SERVING_GROUPS = {
    "server": tuple(msgspec.structs.replace(knob, serving=True) for knob in _SERVER),
    "load": tuple(msgspec.structs.replace(knob, serving=True, work="sample") for knob in _LOAD),
}
SERVING_KNOBS = SERVING_GROUPS["server"] + SERVING_GROUPS["load"]
BLOCK_TOKENS = 16
"""Tokens in a block of the knob `num_gpu_blocks_override`."""
LIVE_KNOBS = tuple(knob.name for knob in SERVING_KNOBS if knob.lowered_live)
"""Limits of the scheduler that can change while the server runs (see `Knob.live_limit`)."""

LIVE_FLAG = "--scheduler-cls gpuconsole.workloads.serving.in_vllm.gpuconsole_caps.scheduler"
"""The flag that a vLLM server needs at its start, so that `gpuconsole watch` can lower its limits
later."""


def embedded_limits(knobs: Knobs) -> dict[str, int]:
    """The LIVE_KNOBS of the embedded server: its own choice is the default of the knob."""
    return {
        knob.name: int(knobs[knob.name]) or int(knob.default or 0)
        for knob in SERVING_KNOBS
        if knob.lowered_live
    }
