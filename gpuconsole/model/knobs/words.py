"""Changes of knobs as plain instructions: `use 4 DataLoader workers` for `num_workers 4`."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.model.knobs.knob import Knobs, show

_WORDS: Mapping[str, str | Mapping[str, str]] = {
    "api_server_count": "use {} API server processes",
    "attention": {"sdpa": "use fused attention", "cudnn": "use cuDNN's fused attention", "math": "use the plain attention formula"},
    "batch_size": "use batches of {}",
    "bucket_cap_mb": "send gradients in buckets of {} MB",
    "channels_last": {"true": "store images channels-last", "false": "store images channels-first"},
    "collate_fn": {"stack": "build batches in the DataLoader workers", "list": "build batches in the training process"},
    "comm_hook": {"none": "send gradients unchanged", "bf16": "send gradients in bf16", "fp16": "send gradients in fp16"},
    "compile_dynamic": {
        "true": "compile once for all shapes",
        "false": "compile for each shape",
        "auto": "let torch decide on dynamic shapes",
    },
    "concurrency": "send {} requests at a time",
    "enable_prefix_caching": {"true": "reuse the KV cache of shared prompt prefixes", "false": "do not reuse prompt prefixes"},
    "enable_chunked_prefill": {"true": "split long prompts", "false": "do not split long prompts"},
    "enforce_eager": {"false": "use CUDA graphs and compilation", "true": "run without CUDA graphs"},
    "eval_batch_size": "evaluate in batches of {}",
    "eval_every": {"0": "do not evaluate", "": "evaluate every {} steps"},
    "gc_collect_every": {"0": "let Python decide when to collect garbage", "": "collect garbage every {} steps"},
    "gpu_memory_utilization": "let the server use {} of the GPU memory",
    "gradient_accumulation_steps": "accumulate gradients over {} passes",
    "gradient_checkpointing": {
        "true": "recompute activations instead of storing them",
        "false": "store activations instead of recomputing them",
    },
    "gradient_percentiles": {"off": "do not compute gradient percentiles", "": "compute gradient percentiles with {}"},
    "h2d_stream": {"true": "copy the next batch during the computation", "false": "copy batches between the computations"},
    "in_order": {"false": "take the first batch that is ready", "true": "keep the order of the batches"},
    "kv_cache_dtype": {"auto": "store the KV cache in the model's precision", "": "store the KV cache in {}"},
    "log_every": {"0": "do not log", "1": "log every step", "": "log every {} steps"},
    "log_gradients": {"false": "do not log gradient histograms", "true": "log gradient histograms"},
    "malloc_mmap_threshold_kb": {"0": "let glibc decide how to map memory", "": "map blocks from {} KB on separately"},
    "malloc_trim_threshold_mb": {"0": "let glibc decide when to return memory", "": "keep {} MB of freed memory for the next step"},
    "max_num_batched_tokens": "let an iteration process {} tokens",
    "max_num_seqs": "let {} sequences run at a time",
    "non_blocking": {"true": "do not wait for copies to the GPU", "false": "wait for each copy to the GPU"},
    "num_gpu_blocks_override": {"0": "let the KV cache use all free memory", "": "give the KV cache {} blocks"},
    "num_threads": {"0": "use all cores but one", "1": "compute in 1 thread", "": "compute in {} threads"},
    "num_workers": {"0": "load data in the training process", "1": "use 1 DataLoader worker", "": "use {} DataLoader workers"},
    "optim": {
        "adamw_fused": "use the fused optimizer",
        "adamw_foreach": "update all parameters together",
        "adamw_8bit": "store optimizer state in 8 bits",
        "": "use the optimizer {}",
    },
    "pad_to_multiple_of": {"0": "pad sequences only to the longest one", "": "pad sequences to multiples of {}"},
    "peft": {"lora": "train low-rank adapters only", "none": "train all weights"},
    "persistent_workers": {"true": "keep the DataLoader workers between epochs", "false": "start DataLoader workers in every epoch"},
    "pin_memory": {"true": "load batches into page-locked memory", "false": "load batches into pageable memory"},
    "precision": "compute in {}",
    "prefetch_factor": {"1": "keep 1 batch ready per worker", "": "keep {} batches ready per worker"},
    "prompt_tokens": "send prompts of {} tokens",
    "pytorch_alloc_conf": {"expandable_segments:True": "let memory segments grow", "default": "use fixed memory segments"},
    "quantization": {"none": "use weights in full precision", "": "quantize the weights to {}"},
    "request_rate": {"0": "send the next request after each answer", "": "send {} requests per second"},
    "save_every": {"0": "do not save checkpoints", "": "save a checkpoint every {} steps"},
    "sharding": {
        "none": "do not shard",
        "ddp": "replicate the model (DDP)",
        "zero1": "shard the optimizer state",
        "zero2": "shard optimizer state and gradients",
        "zero3": "shard parameters, gradients and optimizer state",
    },
    "sparse": {"true": "update only the embedding rows in use", "false": "update the whole embedding table"},
    "straggler_ms": {"0": "remove the delay of the slow process", "": "delay one process by {} ms"},
    "sync_each_batch": {"false": "exchange gradients once per optimizer step", "true": "exchange gradients in every pass"},
    "tensor_parallel": {"1": "do not split layers among GPUs", "": "split each layer among {} GPUs"},
    "tensor_parallel_size": {"1": "do not split layers among GPUs", "": "split each layer among {} GPUs"},
    "torch_compile": {"off": "do not compile the model", "default": "compile the model", "": "compile the model, mode {}"},
    "transform_cost": "use transforms of cost {}",
}
"""An instruction for each knob, for all values or for some; `` is the instruction for all other values."""


def in_words(changes: Knobs) -> str:
    """`use 4 DataLoader workers and load batches into page-locked memory`. A knob without an instruction: `set NAME to VALUE`."""
    parts = [_one(name, show(value)) for name, value in changes.items()]
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def _one(name: str, value: str) -> str:
    words = _WORDS.get(name, "")
    if not isinstance(words, str):
        words = words.get(value, words.get("", ""))
    return words.format(value) if words else f"set {name} to {value}"
