"""The serving cases: the console's own model server under a load of its own, with one known cause
each."""

from __future__ import annotations

import random

from benchmarks.diagbench.cases import Case, Half, Made, width
from gpuconsole.model.knobs.catalogue import Knobs


def _sizes(chance: random.Random, half: Half) -> Knobs:
    wide = 256 if half == "tuning" else width(chance, 192, 336)
    return {"d_model": wide, "n_layer": 4 if half == "tuning" else chance.choice((3, 5))}


def healthy(chance: random.Random, half: Half) -> Made:
    return "serve-chat", {
        **_sizes(chance, half),
        "concurrency": chance.randint(6, 10),
        "prompt_tokens": chance.randint(48, 64),
    }


def nothing_to_share(chance: random.Random, half: Half) -> Made:
    """The prefix cache is off, and no prompt shares a prefix."""
    users = chance.randint(6, 9)
    return "serve-chat", {
        **_sizes(chance, half),
        "concurrency": users,
        "enable_prefix_caching": False,
        "shared_prefix_ratio": 0.0,
    }


def few_seats(chance: random.Random, half: Half) -> Made:
    return "serve-batch", {
        **_sizes(chance, half),
        "max_num_seqs": chance.randint(4, 8),
        "concurrency": chance.randint(32, 64),
    }


def overload(chance: random.Random, half: Half) -> Made:
    """The smallest of these models answers up to some 70 requests/s on two cores."""
    return "overload", {**_sizes(chance, half), "request_rate": round(chance.uniform(90, 130), 1)}


def small_cache(chance: random.Random, half: Half) -> Made:
    return "kv-pressure", {
        **_sizes(chance, half),
        "num_gpu_blocks_override": chance.randint(80, 100),
    }


def missed_prefix(chance: random.Random, half: Half) -> Made:
    share = round(chance.uniform(0.65, 0.85), 2)
    return "serve-prefix", {
        **_sizes(chance, half),
        "shared_prefix_ratio": share,
        "concurrency": chance.randint(6, 8),
    }


def long_prompts(chance: random.Random, half: Half) -> Made:
    return "serve-long", {**_sizes(chance, half), "prompt_tokens": chance.randint(768, 1024)}


def one_user(chance: random.Random, half: Half) -> Made:
    """Weights beyond the caches, read for one sequence at a time."""
    return "decode-one", {
        "d_model": 1024 if half == "tuning" else width(chance, 896, 1160),
        "n_layer": chance.choice((5, 6)),
    }


SERVING = (
    Case(
        "V01",
        "serving_one_user",
        ("serve.decode_bandwidth_bound",),
        one_user,
        ("quantization",),
        serving=True,
    ),
    Case(
        "V02",
        "serving_few_seats",
        ("serve.sequence_cap",),
        few_seats,
        ("max_num_seqs",),
        serving=True,
    ),
    Case("V03", "serving_overload", ("serve.over_capacity",), overload, serving=True, watch_s=10.0),
    Case(
        "V04",
        "serving_small_cache",
        ("serve.kv_bound",),
        small_cache,
        ("num_gpu_blocks_override",),
        serving=True,
    ),
    Case(
        "V05",
        "serving_long_prompts",
        ("serve.prefill_bound",),
        long_prompts,
        ("prompt_tokens",),
        serving=True,
    ),
    Case(
        "V06",
        "serving_missed_prefix",
        ("serve.prefix_reuse_missed",),
        missed_prefix,
        ("enable_prefix_caching",),
        serving=True,
    ),
    Case("V07", "serving_healthy", (), healthy, serving=True, watch_s=10.0),
    Case("V08", "serving_nothing_to_share", (), nothing_to_share, serving=True, watch_s=10.0),
)
