"""The check of a scenario on a card: memory, limit, and whether the scenario teaches there what it says.

One test for each taught rule compares the expected step with the thresholds of the rules themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gpuconsole.diagnosis.families import comm, device, host, loader, passes, serving
from gpuconsole.diagnosis.rules import (
    comm_small_buckets,
    gpu_bandwidth_bound_healthy,
    gpu_elementwise_membw,
    gpu_optimizer_unfused,
    gpu_small_batch,
    mem_activation_capped,
    mem_state_capped,
    serve_decode_bandwidth_bound,
    serve_host_overhead_eager,
    serve_long_context_cliff,
    serve_prefill_bound,
)
from gpuconsole.expected.card import ALLOCATOR_SHARE, Card
from gpuconsole.expected.works import WORKS, Work, limit_bytes
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.text import percent

# --- the check -----------------------------------------------------------------------------------------------

FACTORS = ("batch_size", "concurrency")
"""Knobs whose change in a variant is a factor."""


class Check(msgspec.Struct, frozen=True):
    """One scenario on one card. A figure is None where no model gives it; `why` then says so.

    `fits`: whether the scenario has enough memory and enough cards. `teaches`: whether the taught rule should fire; None: not known.
    """

    scenario: str
    rule: str
    memory_bytes: float | None
    usable_bytes: float
    step_s: float | None
    limit: str
    limit_ratio: float | None
    fits: bool
    teaches: bool | None
    why: str


def check(scenario: Scenario, card: Card) -> Check:
    """The check of `scenario` with the values that it takes on this card."""
    knobs = scenario.knobs_for("gpu", card.memory_bytes)
    make = WORKS.get(scenario.workload.name)
    work = make(knobs, card) if make else None
    rule = scenario.teaches.rule
    if work is None:
        why = f"{scenario.workload.name} has no model" if make is None else f"no peak of this card is known at {precision_of(knobs)}"
        return Check(scenario.name, rule, None, card.usable_bytes, None, "", None, True, None, why)

    def variant(changes: Knobs) -> Work | None:
        changed = {name: int(knobs[name]) * int(value) if name in FACTORS else value for name, value in changes.items()}
        return WORKS[scenario.workload.name]({**knobs, **changed}, card)

    work.figures["limit_bytes"] = limit_bytes(knobs, card)
    room = min(card.usable_bytes, ALLOCATOR_SHARE * work.figures["limit_bytes"])
    needed_cards = max(int(knobs.get("nproc", 1)), int(knobs.get("tensor_parallel_size", 1)))
    verdict = _verdict(scenario, work, variant)
    if work.memory_bytes > room:
        verdict = Verdict(False, f"out of memory: {work.memory_bytes / 1e9:.1f} of {room / 1e9:.1f} GB")
    elif card.count and needed_cards > card.count:
        verdict = Verdict(False, f"needs {needed_cards} GPUs, and this machine has {card.count} of them")
    elif needed_cards > 1:
        verdict = Verdict(verdict.teaches, f"{verdict.why} (on {needed_cards} GPUs)")
    return Check(
        scenario=scenario.name,
        rule=rule,
        memory_bytes=work.memory_bytes,
        usable_bytes=room,
        step_s=work.step_s,
        limit=work.limit,
        limit_ratio=work.share(work.limit),
        fits=work.memory_bytes <= room and not (card.count and needed_cards > card.count),
        teaches=verdict.teaches,
        why=verdict.why,
    )


def _verdict(scenario: Scenario, work: Work, variant: Callable[[Knobs], Work | None]) -> Verdict:
    rule = scenario.teaches.rule or ("serving healthy" if scenario.workload.serves else "training healthy")
    if rule not in TESTS:
        return Verdict(None, f"no model predicts {rule}")
    try:
        return TESTS[rule](work, variant)
    except KeyError as missing:
        return Verdict(None, f"the model of {scenario.workload.name} does not give {missing}")


def precision_of(knobs: Knobs) -> str:
    """The knob that names the precision, as words for a message."""
    name = "precision" if "precision" in knobs else "dtype"
    return f"{name} {knobs.get(name, CATALOGUE[name].default)}"


# --- whether the expected step is what a scenario teaches ------------------------------------------------------

RECOMPILE_LIMIT = 8
"""torch._dynamo.config.recompile_limit."""


class Verdict(NamedTuple):
    """`teaches`: True, False, or None where no model can predict it. `why`: the figures that decide."""

    teaches: bool | None
    why: str


Variants = Callable[[dict[str, bool | int | float | str]], Work | None]
"""The work of the same scenario with some knobs changed."""


def _healthy_compute(work: Work, variant: Variants) -> Verdict:
    if work.figures.get("compiled"):
        return Verdict(None, "the rule needs probe P2, which does not run on a compiled model")
    if "copies_ratio" in work.figures and not (fed := _fed(work, variant)).teaches:
        return fed
    mfu = work.figure("flops") / work.step_s / work.figure("peak_flops_per_s")
    return _least("MFU", mfu, device.MFU)


def _small_batch(work: Work, variant: Variants) -> Verdict:
    larger = variant({"batch_size": 4})
    if larger is None:
        return Verdict(None, "the larger batch has no model")
    cost = (larger.compute_s - larger.device_s["optimizer"]) / 4 / (work.compute_s - work.device_s["optimizer"])
    return _most("time per sample of a 4x batch", cost, gpu_small_batch.COST)


def _unfused(work: Work, variant: Variants) -> Verdict:
    saved = (max(work.device_s["optimizer"], 0.0) - work.figure("fused_update_s")) / work.step_s
    share = work.share("optimizer")
    verdict = _least("optimizer", share, gpu_optimizer_unfused.SHARE)
    return verdict if saved >= passes.GAIN else Verdict(False, f"the fused optimizer saves {percent(saved)} of the step")


def _dense_table(work: Work, variant: Variants) -> Verdict:
    touched = work.figure("rows_touched_ratio")
    if work.limit != "memory bandwidth":
        return Verdict(False, f"{work.limit} is the limit, not the table")
    return _most("rows used by a batch", touched, passes.TOUCHED)


def _slow_storage(work: Work, variant: Variants) -> Verdict:
    if work.figure("loading_cpu_ratio") >= loader.SLEEPS:
        return Verdict(False, f"the loader computes {percent(work.figure('loading_cpu_ratio'))} of its time")
    return _least("data_wait", work.share("data loading"), loader.WAIT)


def _few_workers(work: Work, variant: Variants) -> Verdict:
    wait = work.share("data loading")
    if wait < loader.WAIT:
        return _least("data_wait", wait, loader.WAIT)
    return Verdict(True, f"data_wait {percent(wait)}; one worker alone gives {work.figure('one_worker_speedup'):.2f}x")


def _fed(work: Work, variant: Variants) -> Verdict:
    """The loader and the copies do not hold back the step."""
    copies = work.figure("copies_ratio")
    if copies >= loader.WAIT:
        return Verdict(False, f"copies to the GPU take {percent(copies)} of the step")
    verdict = _most("data_wait", work.share("data loading"), loader.WAIT)
    return Verdict(verdict.teaches, f"{verdict.why}, if the workers have cores")


def _states(work: Work, variant: Variants) -> Verdict:
    used, states = work.memory_bytes / work.figure("limit_bytes"), work.figure("states_bytes") / work.memory_bytes
    if states < mem_state_capped.PART:
        return Verdict(False, f"states are only {percent(states)} of the used memory")
    return _least("memory used", used, mem_state_capped.USED)


def _activations(work: Work, variant: Variants) -> Verdict:
    used, part = work.memory_bytes / work.figure("limit_bytes"), work.figure("activations_bytes") / work.memory_bytes
    if part < mem_activation_capped.PART:
        return Verdict(False, f"activations are only {percent(part)} of the used memory")
    return _least("memory used", used, mem_activation_capped.USED)


def _recompiles(work: Work, variant: Variants) -> Verdict:
    lengths = work.figure("lengths")
    why = f"{lengths:.0f} lengths in 50 batches, torch compiles {RECOMPILE_LIMIT} at most"
    return Verdict(lengths > RECOMPILE_LIMIT + 1, why)


def _straggler(work: Work, variant: Variants) -> Verdict:
    late = 1 + work.waits_s.get("the slow process", 0.0) / max(1e-9, work.compute_s)
    return Verdict(late >= comm.LATE, f"the slow process takes {late:.2f}x the time of a pass, the rule needs {comm.LATE:.2f}x")


def _buckets(work: Work, variant: Variants) -> Verdict:
    now, large = work.figure("exchange_now_s"), work.figure("exchange_large_s")
    lost = max(0.0, 1 - large / now) * work.share("communication")
    return _least("lost to small buckets", lost, comm_small_buckets.GAIN)


def _decode_bound(work: Work, variant: Variants) -> Verdict:
    dominated = _dominate(work)
    return dominated or _least("share of the memory bandwidth", work.figure("reached"), serve_decode_bandwidth_bound.REACHED)


def _batch_small(work: Work, variant: Variants) -> Verdict:
    dominated, larger = _dominate(work), variant({"concurrency": 4})
    if dominated or larger is None:
        return dominated or Verdict(None, "the larger load has no model")
    gain = 4 * work.step_s / larger.step_s
    return Verdict(gain >= serving.MORE_USERS, f"4x the users give {gain:.1f}x the tokens, the rule needs {serving.MORE_USERS:g}x")


def _dominate(work: Work) -> Verdict | None:
    ratio = work.figure("weight_bytes") / max(1.0, work.figure("kv_bytes"))
    least = serve_decode_bandwidth_bound.DOMINATE
    return None if ratio >= least else Verdict(False, f"weights are {ratio:.1f}x the keys and values, the rule needs {least:g}x")


def _preemption(work: Work, variant: Variants) -> Verdict:
    needed = work.figure("needed_tokens") / work.figure("cache_tokens")
    return Verdict(needed > 1, f"the requests need {needed:.1f}x the KV cache")


def _seats(work: Work, variant: Variants) -> Verdict:
    full = work.figure("kv_bytes") / max(1.0, work.figure("kv_bytes") / work.figure("running") * work.figure("wanted"))
    return Verdict(work.figure("wanted") > work.figure("running"), f"{percent(full)} of the requests run, and the KV cache has room")


def _over_capacity(work: Work, variant: Variants) -> Verdict:
    rate, capacity = work.figure("request_rate"), work.figure("capacity")
    return Verdict(rate > 1.2 * capacity, f"{rate:g} requests/s arrive, about {capacity:.3g} are answered")


def _long_context(work: Work, variant: Variants) -> Verdict:
    ratio = work.figure("kv_bytes") / work.figure("weight_bytes")
    least = serve_long_context_cliff.RATIO
    return Verdict(ratio >= least, f"keys and values are {ratio:.1f}x the weights, the rule needs {least:g}x")


def _prefix(work: Work, variant: Variants) -> Verdict:
    cached = variant({"enable_prefix_caching": True})
    if cached is None:
        return Verdict(None, "the cached prefix has no model")
    gain = cached.figure("capacity") / work.figure("capacity")
    return Verdict(gain >= 1.05, f"a cached prefix gives {gain:.2f}x the requests, the rule needs 1.05x")


def _served_well(work: Work, variant: Variants) -> Verdict:
    """serve-chat: nothing should fire."""
    busy, least = work.figure("busy"), serve_host_overhead_eager.BUSY
    dominated = _dominate(work) is None
    if dominated:
        return Verdict(False, "weights dominate: more users would share a reading")
    return _least("the GPU computes", busy, least)


def _least(what: str, value: float, least: float) -> Verdict:
    return Verdict(value >= least, f"{what} {percent(value)}, the rule needs {percent(least)}")


def _most(what: str, value: float, most: float) -> Verdict:
    return Verdict(value <= most, f"{what} {percent(value)}, at most {percent(most)}")


def _at_least(what: str, value: Callable[[Work], float], least: float) -> Callable[[Work, Variants], Verdict]:
    """The test of a rule with one threshold."""
    return lambda work, variant: _least(what, value(work), least)


TESTS: dict[str, Callable[[Work, Variants], Verdict]] = {
    "comm.exposed": _at_least("exposed communication", lambda work: work.share("communication"), comm.EXPOSED),
    "comm.small_buckets": _buckets,
    "comm.straggler": _straggler,
    "gpu.attention_math": _at_least("traffic of the scores", lambda work: work.figure("scores_s") / work.step_s, passes.GAIN),
    "gpu.bandwidth_bound_healthy": _at_least(
        "share of the memory bandwidth", lambda work: work.device_s["memory bandwidth"] / work.step_s * 0.9, gpu_bandwidth_bound_healthy.MBU
    ),
    "gpu.compute_bound_healthy": _healthy_compute,
    "gpu.dense_embedding_grad": _dense_table,
    "gpu.elementwise_membw": _at_least("elementwise operations", lambda work: work.share("memory bandwidth"), gpu_elementwise_membw.SHARE),
    "gpu.optimizer_unfused": _unfused,
    "gpu.small_batch": _small_batch,
    "host.checkpoint_stall": _at_least("checkpoints", lambda work: work.share("checkpoints"), host.SIDE_WORK),
    "host.logging_io": _at_least("logging", lambda work: work.share("logging"), host.SIDE_WORK),
    "host.recompile_graphbreak": _recompiles,
    "input.slow_storage": _slow_storage,
    "input.too_few_workers": _few_workers,
    "mem.activation_capped": _activations,
    "mem.fragmentation": lambda work, variant: Verdict(None, "fragments depend on the order of allocations: no model predicts them"),
    "mem.state_capped": _states,
    "serve.batch_too_small": _batch_small,
    "serve.decode_bandwidth_bound": _decode_bound,
    "serve.kv_full_preemption": _preemption,
    "serve.long_context_cliff": _long_context,
    "serve.over_capacity": _over_capacity,
    "serve.prefill_bound": _at_least(
        "prefill", lambda work: work.figure("prefill_s") / (work.figure("prefill_s") + work.figure("decode_s")), serve_prefill_bound.SHARE
    ),
    "serve.prefix_reuse_missed": _prefix,
    "serve.seats_too_few": _seats,
    "training healthy": _fed,
    "serving healthy": _served_well,
}
"""By rule id. The two last are for scenarios in which no rule should fire."""
