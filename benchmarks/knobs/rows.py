"""Which changes are measured on which scenario, most important first."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.engine.catalog import scenarios
from gpuconsole.model.knobs.catalogue import Knobs

LARGER_SAMPLE = "each sample is more work"
LARGER_MODEL = "the model is larger"


class Row(msgspec.Struct, frozen=True):
    """A change to try. `sets`: values of both sides that differ from the scenario's.

    `kind`: `memory` also measures the memory by part of both sides; `no effect` asks the product
    why the values of `changes` have no effect on this device, `refused` why they are not possible.
    `duration_s` counts from the first step; the trial takes additional time.
    """

    scenario: str
    changes: Knobs
    sets: Knobs = {}
    kind: Literal["trial", "memory", "no effect", "refused"] = "trial"
    duration_s: float = 10.0
    note: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the row."""
        return self.scenario, msgspec.json.encode(
            (self.changes, self.sets), order="sorted"
        ).decode()


MEMORY_FIXES = ("finetune-lora", "long-sequence", "zero-memory", "fragmented-memory")
"""Scenarios whose fix is about memory."""
FIX_DURATION_S = 20.0
"""The diagnosis comes first, for its prediction. It ends earlier where the diagnosis stands
earlier."""
FIRST = (
    "ddp-small-batch",
    "optimizer-heavy",
    "train-vision",
    "naive-attention",
    "long-sequence",
    "zero-memory",
)

OTHERS = (
    Row("train-gpt", {"precision": "bf16"}, duration_s=FIX_DURATION_S),
    Row("train-gpt", {"num_threads": 2}),
    Row("train-gpt", {"malloc_trim_threshold_mb": 0}),
    Row("train-gpt", {"malloc_trim_threshold_mb": 0}, {"precision": "bf16"}),
    Row("train-gpt", {"batch_size": 32}),
    Row("train-gpt", {"attention": "math"}),
    Row("train-gpt", {"attention": "cudnn"}, kind="refused"),
    Row("train-gpt", {"float8_linear": True}, kind="refused"),
    Row("train-gpt", {"gradient_checkpointing": True}, kind="memory"),
    Row("train-gpt", {"gradient_accumulation_steps": 4}),
    Row("train-gpt", {"torch_compile": "default"}),
    Row("train-gpt", {"optim": "adamw"}),
    Row("train-gpt", {"precision": "fp16"}, {"batch_size": 1, "seq_len": 32}),
    Row("train-gpt", {"precision": "fp8"}, kind="refused"),
    Row(
        "train-gpt",
        {
            "precision": "tf32",
            "non_blocking": True,
            "h2d_stream": True,
            "pytorch_alloc_conf": "expandable_segments:True",
            "memory_limit_mb": 256,
        },
        kind="no effect",
        duration_s=1.0,
    ),
    Row("vision-healthy", {"pin_memory": True}, kind="no effect", duration_s=1.0),
    Row("vision-healthy", {"cudnn_benchmark": True}, kind="no effect", duration_s=1.0),
    Row("unfused-chain", {"torch_compile": "reduce-overhead"}, kind="no effect", duration_s=1.0),
    Row("ddp-small-batch", {"comm_hook": "bf16"}),
    Row("ddp-small-batch", {"comm_hook": "powersgd"}),
    Row("ddp-small-batch", {"bucket_cap_mb": 1.0}),
    Row("ddp-small-batch", {"batch_size": 4}),
    Row("ddp-small-batch", {"sharding": "zero1"}, kind="memory"),
    Row("ddp-small-batch", {"sharding": "zero3"}, kind="memory"),
    Row(
        "ddp-small-batch",
        {"nproc": 1, "sharding": "none"},
        note="of one process, with half as many samples a step",
    ),
    Row("zero-memory", {"sharding": "zero1"}, kind="memory"),
    Row("zero-memory", {"sharding": "zero2"}, kind="memory"),
    Row("vision-healthy", {"num_workers": 0}),
    Row("vision-healthy", {"num_workers": 2}),
    Row("vision-healthy", {"channels_last": True}),
    Row("vision-healthy", {"precision": "bf16"}),
    Row("vision-healthy", {"prefetch_factor": 8}),
    Row("vision-healthy", {"persistent_workers": False}),
    Row("vision-healthy", {"in_order": False}),
    Row("vision-healthy", {"collate_fn": "list"}, {"batch_size": 96, "image_size": 32, "width": 8}),
    Row("vision-healthy", {"max_train_samples": 128}, {"persistent_workers": False}),
    Row("vision-healthy", {"slow_sample_ratio": 0.01}, {"storage_latency_ms": 5.0}),
    Row("vision-healthy", {"storage_reads": 20}),
    Row("vision-healthy", {"tensors_per_sample": 8}, {"collate_fn": "list"}),
    Row("ddp-small-batch", {"sync_each_batch": True}, {"gradient_accumulation_steps": 4}),
    Row("vision-healthy", {"storage_latency_ms": 4.0}),
    Row("vision-healthy", {"transform_cost": 4}),
    Row("optimizer-heavy", {"optim": "adamw_foreach"}),
    Row("optimizer-heavy", {"optim": "sgd"}, kind="memory"),
    Row("optimizer-heavy", {"optim": "adamw_8bit"}, kind="memory"),
    Row("optimizer-heavy", {"gradient_accumulation_steps": 4}),
    Row("train-gpt", {"log_every": 1}),
    Row("train-gpt", {"log_gradients": True}, {"log_every": 1}),
    Row("train-gpt", {"save_every": 20}),
    Row("train-gpt", {"eval_every": 20}),
    Row("train-gpt", {"eval_batch_size": 1}, {"eval_every": 10}),
    Row("train-gpt", {"gradient_percentiles": "torch"}, {"gradient_percentiles": "python"}),
    Row("train-gpt", {"gc_collect_every": 1}),
    Row("train-gpt", {"leak_mb": 2.0}),
    Row("train-gpt", {"lr_scheduler": "cosine", "warmup_steps": 100}),
    Row("train-gpt", {"varied_lengths": True}),
    Row("train-gpt", {"pad_to_multiple_of": 64}, {"varied_lengths": True}),
    Row("dynamic-shapes", {"pad_to_multiple_of": 64}),
    Row("ddp-straggler", {"straggler_phase": "forward"}),
    Row("ddp-small-batch", {"comm_hook": "fp16"}),
    Row("finetune-lora", {"lora_rank": 64}, {"peft": "lora"}, kind="memory"),
    Row("train-gpt", {"seq_len": 512}, note=LARGER_SAMPLE),
    Row("train-gpt", {"d_model": 384}, note=LARGER_MODEL),
    Row("train-gpt", {"n_layer": 8}, note=LARGER_MODEL),
    Row("vision-healthy", {"image_size": 96}, note=LARGER_SAMPLE),
    Row("vision-healthy", {"width": 48}, note=LARGER_MODEL),
    Row("embedding-bound", {"num_embeddings": 100_000}),
    Row("embedding-bound", {"embedding_dim": 64}, note=LARGER_MODEL),
    Row("unfused-chain", {"chain_length": 20}, note=LARGER_MODEL),
    Row("allreduce-bandwidth", {"buffer_mb": 64.0}, note=LARGER_SAMPLE),
    Row("memory-bandwidth", {"num_threads": 2}),
    Row("gemm-peak", {"precision": "bf16"}),
    Row("gemm-peak", {"matrix_size": 2048}, note="a product is 8 times the work"),
    Row("serve-chat", {"concurrency": 32}),
    Row("serve-chat", {"dtype": "bfloat16"}),
    Row("serve-chat", {"omp_num_threads": 2}),
    Row("serve-chat", {"output_tokens": 16}),
    Row("serve-chat", {"length_spread": 0.0}),
    Row("serve-chat", {"endpoint": "chat"}),
    Row("serve-chat", {"shared_prefix_ratio": 0.9}),
    Row("serve-chat", {"max_model_len": 1024}),
    Row("serve-chat", {"weights": "trained"}),
    Row("serve-chat", {"max_num_seqs": 2}, note="live, in the same server"),
    Row("serve-long", {"max_num_batched_tokens": 64}, note="live, in the same server"),
    Row("serve-chat", {"server": "vllm"}, kind="refused"),
    Row(
        "serve-chat",
        {
            "gpu_memory_utilization": 0.5,
            "enforce_eager": True,
            "tensor_parallel_size": 2,
            "quantization": "fp8",
            "kv_cache_dtype": "fp8",
            "burstiness": 0.5,
            "api_server_count": 2,
            "num_speculative_tokens": 4,
        },
        kind="no effect",
        duration_s=1.0,
    ),
    Row("context-cliff", {"max_num_batched_tokens": 512}),
    Row("context-cliff", {"enable_chunked_prefill": False}, {"max_num_batched_tokens": 4096}),
    Row("overload", {"request_rate": 15.0}, note="fewer come, and few wait"),
    Row("overload", {"max_concurrency": 8}, note="the queue is in the client"),
    Row("overload", {"burstiness": 0.2}),
)


def rows() -> list[Row]:
    """The fix that each scenario teaches, then the others; a few fixes come first."""
    taught = {name: one.teaches.fix for name, one in scenarios()[0].items() if one.teaches.fix}
    names = [
        *(name for name in FIRST if name in taught),
        *(name for name in taught if name not in FIRST),
    ]
    fixes = [
        Row(
            name,
            dict(taught[name]),
            kind="memory" if name in MEMORY_FIXES else "trial",
            duration_s=FIX_DURATION_S,
            note="its fix",
        )
        for name in names
    ]
    return [*fixes, *OTHERS]
