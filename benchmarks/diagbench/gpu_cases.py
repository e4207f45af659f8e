"""The GPU cases: at GPU scale, with the same rules and the same scoring.

Missing: cases without a knob here (G13 has no rule yet, G03 is G06, G09 needs a branch in every
layer, G18 needs permission for clocks), and G20, which needs two GPUs.
"""

from __future__ import annotations

import random

from benchmarks.diagbench.cases import Case, Half, Made, either, fixed, integer
from gpuconsole.model.knobs.catalogue import Knobs


def gpt(chance: random.Random, half: Half, **knobs: object) -> Made:
    sizes: Knobs = {
        "d_model": 768 if half == "tuning" else chance.choice((896, 1024)),
        "batch_size": chance.choice((16, 24)),
    }
    return "train-gpt", {**sizes, "n_layer": 12, "seq_len": 1024, "precision": "bf16", **knobs}  # type: ignore[dict-item]


def tiny(chance: random.Random, half: Half, **knobs: object) -> Made:
    """Kernels so small that the host cannot launch them fast enough."""
    return "train-gpt", {
        "d_model": 256,
        "n_layer": chance.choice((12, 16)),
        "batch_size": 1,
        "seq_len": 128,
        "precision": "bf16",
        **knobs,
    }  # type: ignore[dict-item]


def pictures(chance: random.Random, half: Half, **knobs: object) -> Made:
    return ("vision-healthy"), {"batch_size": 256, "image_size": chance.choice((192, 224)), **knobs}  # type: ignore[dict-item]


def convolutions(chance: random.Random, half: Half, **knobs: object) -> Made:
    """So many channels that the loader is fast enough."""
    sizes: Knobs = {
        "width": 192 if half == "tuning" else chance.choice((224, 256)),
        "image_size": 128,
        "batch_size": 128,
        "num_workers": 8,
    }
    return "vision-healthy", {**sizes, "precision": "bf16", **knobs}  # type: ignore[dict-item]


GPU = (
    Case("G01", "gpt_tuned", (), either(gpt, gpt, torch_compile=fixed("default"))),
    Case(
        "G02",
        "decoy_item_each_step",
        (),
        either(gpt, gpt, log_every=fixed(1), torch_compile=fixed("default")),
    ),
    Case(
        "G04",
        "fp32",
        ("gpu.fp32_no_tensor_core",),
        either(gpt, gpt, precision=fixed("fp32")),
        ("precision",),
    ),
    Case(
        "G05",
        "convolutions_in_nchw",
        ("gpu.conv_layout_autotune",),
        either(convolutions, convolutions, channels_last=fixed(False)),
        ("channels_last",),
    ),
    Case(
        "G06",
        "eager_batch_of_one",
        ("host.launch_bound", "gpu.small_batch"),
        tiny,
        ("torch_compile", "batch_size"),
    ),
    Case(
        "G07",
        "compiled_batch_of_four",
        ("gpu.small_batch",),
        either(tiny, tiny, batch_size=fixed(4), torch_compile=fixed("default")),
        ("batch_size",),
    ),
    Case(
        "G08",
        "pageable_copies",
        ("h2d.pageable_or_serial",),
        either(pictures, pictures, pin_memory=fixed(False), non_blocking=fixed(False)),
        ("pin_memory", "h2d_stream"),
    ),
    Case(
        "G10",
        "pointwise_chain",
        ("gpu.elementwise_membw",),
        lambda chance, half: ("unfused-chain", {}),
        ("torch_compile",),
    ),
    Case(
        "G11",
        "optimizer_loop",
        ("gpu.optimizer_unfused",),
        lambda chance, half: ("optimizer-heavy", {}),
        ("optim",),
    ),
    Case(
        "G12",
        "plain_attention",
        ("gpu.attention_math",),
        lambda chance, half: ("naive-attention", {}),
        ("attention",),
    ),
    Case(
        "G14",
        "activations_fill_memory",
        ("mem.activation_capped",),
        lambda chance, half: ("long-sequence", {}),
    ),
    Case(
        "G15",
        "states_fill_memory",
        ("mem.state_capped",),
        lambda chance, half: (
            "train-gpt",
            {"d_model": 3072, "n_layer": 32, "batch_size": 1, "seq_len": 512, "precision": "bf16"},
        ),
    ),
    Case(
        "G16",
        "fragmentation",
        ("mem.fragmentation",),
        lambda chance, half: ("fragmented-memory", {}),
        ("pytorch_alloc_conf",),
    ),
    Case(
        "G17",
        "device_leak",
        ("mem.leak_gpu",),
        either(gpt, gpt, leak_mb=integer(20, 30)),
        watch_s=20.0,
    ),
    Case("G19", "shared_gpu", ("hw.shared_gpu",), gpt, gpu_neighbours=1),
)

GPU_SERVING = (
    Case(
        "GV1",
        "decode_at_the_roofline",
        ("serve.decode_bandwidth_bound",),
        lambda chance, half: ("decode-one", {}),
        serving=True,
    ),
    Case(
        "GV2",
        "eager_decoding",
        ("serve.host_bound",),
        lambda chance, half: ("decode-one", {"enforce_eager": True}),
        ("enforce_eager",),
        serving=True,
    ),
    Case(
        "GV3",
        "small_cache",
        ("serve.kv_bound",),
        lambda chance, half: ("kv-pressure", {}),
        serving=True,
    ),
    Case(
        "GV4",
        "few_seats",
        ("serve.sequence_cap",),
        lambda chance, half: ("serve-batch", {"max_num_seqs": 4}),
        ("max_num_seqs",),
        serving=True,
    ),
    Case(
        "GV5",
        "prefill_interference",
        ("serve.prefill_stalls_decode", "serve.prefill_bound"),
        lambda chance, half: ("serve-long", {"max_num_batched_tokens": 8192, "concurrency": 16}),
        ("max_num_batched_tokens",),
        serving=True,
    ),
    Case(
        "GV6",
        "missed_prefix",
        ("serve.prefix_reuse_missed",),
        lambda chance, half: ("serve-prefix", {}),
        ("enable_prefix_caching",),
        serving=True,
    ),
    Case(
        "GV7",
        "long_context",
        ("serve.long_context_cliff",),
        lambda chance, half: ("context-cliff", {}),
        serving=True,
    ),
)
