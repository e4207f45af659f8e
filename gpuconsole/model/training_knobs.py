"""The knobs of training workloads, by group. A workload's TOML file names the groups it has, and single knobs beside them."""

from __future__ import annotations

from gpuconsole.model.knob import Knob

LOOP = (
    Knob(
        "batch_size", "int", "samples in one forward pass, per process", low=1, high=65536, changes_training=True, examples=(4, 8, 16, 32)
    ),
    Knob(
        "precision",
        "choice",
        "matrix arithmetic: fp32, TF32 matmuls, or autocast to bf16 or fp16 (with GradScaler)",
        choices=("fp32", "tf32", "bf16", "fp16"),
        default="fp32",
        examples=("fp32", "tf32", "bf16"),
    ),
    Knob(
        "torch_compile",
        "choice",
        "torch.compile of the model, by mode",
        apply="cold",
        choices=("off", "default", "reduce-overhead", "max-autotune"),
        default="off",
        examples=("off", "default"),
    ),
    Knob(
        "compile_dynamic",
        "choice",
        "torch.compile(dynamic=...): auto lets torch decide after the first change of shape",
        apply="cold",
        choices=("auto", "true", "false"),
        default="auto",
        examples=("auto", "true"),
    ),
    Knob(
        "gradient_accumulation_steps",
        "int",
        "forward/backward passes per optimizer step",
        low=1,
        high=1024,
        default=1,
        changes_training=True,
        examples=(1, 2, 4, 8),
    ),
    Knob(
        "optim",
        "choice",
        "optimizer and its implementation; adamw_8bit needs torchao or bitsandbytes",
        choices=("adamw", "adamw_foreach", "adamw_fused", "adamw_8bit", "sgd"),
        default="adamw_fused",
        examples=("adamw", "adamw_foreach", "adamw_fused"),
    ),
    Knob(
        "lr_scheduler",
        "choice",
        "learning rate over time, after the warm-up",
        choices=("constant", "cosine", "linear"),
        default="constant",
        changes_training=True,
        examples=("constant", "cosine"),
    ),
    Knob(
        "warmup_steps",
        "int",
        "optimizer steps in which the learning rate rises from 0",
        low=0,
        high=100_000,
        unit="steps",
        default=0,
        changes_training=True,
        examples=(0, 100),
    ),
    Knob(
        "non_blocking",
        "bool",
        "copy batches to the GPU without waiting for the copy (needs pin_memory)",
        default=True,
        examples=(False, True),
    ),
    Knob(
        "h2d_stream",
        "bool",
        "copy the next batch on a CUDA stream of its own while this one computes",
        default=False,
        examples=(False, True),
    ),
    Knob(
        "num_threads",
        "int",
        "intra-op CPU threads of the training process; 0: all cores but one, shared among the processes",
        low=0,
        high=1024,
        default=0,
        examples=(0, 1, 2),
    ),
    Knob(
        "pytorch_alloc_conf",
        "choice",
        "PYTORCH_ALLOC_CONF of the CUDA allocator",
        apply="cold",
        choices=("default", "expandable_segments:True"),
        default="default",
        examples=("default", "expandable_segments:True"),
    ),
    Knob(
        "memory_limit_mb",
        "int",
        "device memory that the run may use; enforced on CUDA, a yardstick on a CPU; 0: all of it",
        apply="cold",
        low=0,
        high=1_000_000,
        unit="MB",
        default=0,
        examples=(0, 256, 8192),
    ),
    Knob(
        "log_every", "int", "steps between two log records; 0: never", low=0, high=1_000_000, unit="steps", default=20, examples=(1, 10, 50)
    ),
    Knob(
        "log_gradients",
        "bool",
        "write a histogram of every parameter's gradient into each log record",
        default=False,
        examples=(False, True),
    ),
    Knob(
        "save_every",
        "int",
        "steps between two checkpoints; 0: never",
        low=0,
        high=1_000_000,
        unit="steps",
        default=0,
        examples=(0, 10, 200),
    ),
    Knob(
        "eval_every",
        "int",
        "steps between two evaluations; 0: never",
        low=0,
        high=1_000_000,
        unit="steps",
        default=0,
        examples=(0, 50, 200),
    ),
)

LOADER = (
    Knob("num_workers", "int", "DataLoader worker processes", low=0, high=256, loader=True, default=0, examples=(0, 1, 2, 4, 8)),
    Knob(
        "prefetch_factor", "int", "batches each DataLoader worker keeps ready", low=1, high=64, loader=True, default=2, examples=(2, 4, 8)
    ),
    Knob(
        "pin_memory", "bool", "collate batches into page-locked host memory (GPU only)", loader=True, default=True, examples=(False, True)
    ),
    Knob("persistent_workers", "bool", "keep DataLoader workers between epochs", loader=True, default=True, examples=(False, True)),
    Knob(
        "in_order",
        "bool",
        "hand out batches in the sampler's order, also when a later one is ready first",
        loader=True,
        default=True,
        examples=(True, False),
    ),
)

PARALLEL = (
    Knob("nproc", "int", "processes on this machine, started by torchrun", apply="cold", low=1, high=64, default=1, examples=(1, 2, 8)),
    Knob(
        "sharding",
        "choice",
        "data parallelism: ddp replicates; zero1 shards optimizer states, zero2 gradients too, zero3 parameters too (FSDP2)",
        apply="cold",
        choices=("none", "ddp", "zero1", "zero2", "zero3"),
        default="none",
        examples=("ddp", "zero1", "zero2", "zero3"),
    ),
    Knob(
        "comm_hook",
        "choice",
        "how DDP sends gradients: as they are, in 16 bits, or as low-rank factors",
        apply="cold",
        choices=("none", "bf16", "fp16", "powersgd"),
        default="none",
        examples=("none", "bf16"),
    ),
    Knob(
        "bucket_cap_mb",
        "float",
        "size of DDP's gradient buckets",
        apply="cold",
        low=0.001,
        high=4096,
        unit="MB",
        default=25.0,
        examples=(1.0, 25.0, 100.0),
    ),
    Knob(
        "tensor_parallel", "int", "processes that share each layer's matrices", apply="cold", low=1, high=64, default=1, examples=(1, 2, 8)
    ),
)

MODEL = (
    Knob("d_model", "int", "width of the transformer", apply="cold", low=32, high=16384, default=192, examples=(192, 768)),
    Knob("n_layer", "int", "transformer blocks", apply="cold", low=1, high=256, default=4, examples=(4, 12)),
    Knob(
        "seq_len",
        "int",
        "tokens in a training sequence",
        low=8,
        high=131072,
        unit="tokens",
        default=128,
        changes_training=True,
        examples=(64, 128, 256),
    ),
    Knob(
        "attention",
        "choice",
        "fused scaled dot product attention, or the plain formula",
        choices=("sdpa", "math"),
        default="sdpa",
        examples=("sdpa", "math"),
    ),
    Knob(
        "gradient_checkpointing",
        "bool",
        "recompute activations in the backward pass instead of keeping them",
        default=False,
        examples=(False, True),
    ),
    Knob(
        "peft",
        "choice",
        "train all weights, or low-rank adapters beside frozen ones",
        apply="cold",
        choices=("none", "lora"),
        default="none",
        changes_training=True,
        examples=("none", "lora"),
    ),
    Knob("lora_rank", "int", "rank of the LoRA adapters", apply="cold", low=1, high=1024, default=8, examples=(4, 8, 16)),
    Knob(
        "pad_to_multiple_of",
        "int",
        "pad sequences up to a multiple of this many tokens; 0: as long as they are",
        low=0,
        high=8192,
        unit="tokens",
        default=0,
        examples=(0, 32, 64),
    ),
)

EXERCISES = (
    Knob(
        "transform_cost",
        "int",
        "exercise: how often the augmentation's blur is applied to a sample",
        low=0,
        high=64,
        loader=True,
        default=0,
        examples=(0, 1, 4),
    ),
    Knob(
        "storage_latency_ms",
        "float",
        "exercise: wait before each sample is read, as remote storage would make it",
        low=0,
        high=1000,
        unit="ms",
        loader=True,
        default=0.0,
        examples=(0.0, 2.0, 10.0),
    ),
    Knob(
        "straggler_ms",
        "float",
        "exercise: how much longer the last process takes for a pass",
        low=0,
        high=10_000,
        unit="ms",
        default=0.0,
        examples=(0.0, 20.0, 50.0),
    ),
    Knob(
        "straggler_phase",
        "choice",
        "exercise: where the slow process loses its time",
        choices=("data_wait", "forward", "backward"),
        default="backward",
        examples=("forward", "backward"),
    ),
    Knob(
        "varied_lengths",
        "bool",
        "exercise: sequences between a quarter of seq_len and all of it, as text has them",
        default=False,
        examples=(False, True),
    ),
)

OTHERS = (
    Knob("channels_last", "bool", "NHWC memory layout for convolutions", default=False, examples=(False, True)),
    Knob(
        "image_size",
        "int",
        "side of the square training image, pixels",
        apply="cold",
        low=32,
        high=512,
        unit="px",
        default=64,
        examples=(64, 224),
    ),
    Knob("width", "int", "channels of the convnet's first stage", apply="cold", low=8, high=512, default=32, examples=(16, 64)),
    Knob(
        "num_embeddings",
        "int",
        "rows of the embedding table",
        apply="cold",
        low=64,
        high=1_000_000_000,
        default=400_000,
        examples=(400_000, 50_000_000),
    ),
    Knob("embedding_dim", "int", "columns of the embedding table", apply="cold", low=4, high=4096, default=32, examples=(32, 128)),
    Knob(
        "sparse",
        "bool",
        "sparse embedding gradients with SparseAdam: only rows that were looked up are updated",
        apply="cold",
        default=False,
        examples=(False, True),
    ),
    Knob("matrix_size", "int", "side of the square matrices", apply="cold", low=64, high=65536, default=1024, examples=(1024, 8192)),
    Knob(
        "buffer_mb",
        "float",
        "size of the buffer that is copied or reduced",
        apply="cold",
        low=0.001,
        high=65536,
        unit="MB",
        default=64.0,
        examples=(64.0, 1024.0),
    ),
    Knob("chain_length", "int", "elementwise operations in a row", apply="cold", low=1, high=256, default=10, examples=(10, 30)),
)

GROUPS: dict[str, tuple[Knob, ...]] = {"loop": LOOP, "loader": LOADER, "parallel": PARALLEL, "model": MODEL}
"""The groups that a workload's TOML file can name."""

TRAINING_KNOBS = LOOP + LOADER + PARALLEL + MODEL + EXERCISES + OTHERS
