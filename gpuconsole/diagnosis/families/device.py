"""Shared by rules about the GPU's work: how well it computes (MFU), whether the host or the GPU is
the limit of a step, how long the GPU is busy, how much of the SM clock is lost, and to what.

All of this is known without a probe. A step ends on the host when its last kernel is issued. If the
GPU has then done all earlier work, the host was the limit, or it has waited for the GPU (a
synchronisation). If the GPU still has work, it may have stood still earlier in the step: `idle`
says for how long.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    CodePlace,
    Evidence,
    Threshold,
    percent,
)

# --- clocks ---------------------------------------------------------------------------------------

CAPPED_TIME = 0.10
"""Share of time: a power cap that works for less than this is not why the mean clock is low (survey
T39, as `hw.power`)."""


def clock_loss(case: Case) -> float:
    """1 - SM clock under load / the clock that the card should have: NVML's maximum, or the boost
    clock of a graphics card. Raises Missing."""
    return max(0.0, 1 - case.value("hw.sm_clock_ratio"))


def loss_is_sure(case: Case) -> bool:
    """Whether the clock is compared with one that the card reaches at full load. For a graphics
    card without a known boost clock it is not."""
    return not case.get("hw.clock_unsure", 0.0)


def held_by_power(case: Case) -> float:
    """Share of time in which a power limit or an external brake lowered the clocks. Raises
    Missing."""
    return max(case.value("hw.power_cap_time_ratio"), case.get("hw.power_brake_time_ratio", 0.0))


def lost_to_heat(case: Case) -> float:
    """The part of the lost clock that heat explains. Heat and power share the loss in proportion to
    their times. Raises Missing."""
    heat, power = (
        case.value("hw.thermal_time_ratio"),
        max(case.get("hw.power_cap_time_ratio", 0.0), case.get("hw.power_brake_time_ratio", 0.0)),
    )
    return min(MAX_SHARE, clock_loss(case) * heat / (heat + power)) if heat > 0 else 0.0


def lost_to_power(case: Case) -> float:
    """The part of the lost clock that power explains. Raises Missing."""
    power, heat = held_by_power(case), case.get("hw.thermal_time_ratio", 0.0)
    return min(MAX_SHARE, clock_loss(case) * power / (heat + power)) if power > 0 else 0.0


def capped_clock(case: Case) -> float:
    """The SM clock under load over the datasheet's, as far as the power cap lowers it; 1 where it
    does not, or where one of both is not known.

    An L4 of 72 W or a T4 of 70 W reaches the datasheet's clock in no large product, so no program
    reaches their peak.
    """
    held, heat = case.get("hw.power_cap_time_ratio", 0.0), case.get("hw.thermal_time_ratio", 0.0)
    lost = max(0.0, 1 - case.get("hw.datasheet_clock_ratio", 1.0))
    return 1 - min(MAX_SHARE, lost) * held / (heat + held) if lost and held >= CAPPED_TIME else 1.0


# --- the work of the GPU --------------------------------------------------------------------------

MFU = Threshold(
    "mfu",
    0.40,
    "ratio",
    (
        "40 % of the dense peak: well-tuned large training runs report this much (PaLM 46 %, MPT-7B"
        " 40-46 %)"
    ),
)
MFU_CAUSAL = Threshold(
    "mfu_causal",
    0.36,
    "ratio",
    (
        "the same runs where attention counts without its masked half: 40 % less the 4 to 10 % that"
        " this half has of the FLOPs"
    ),
)
CAUGHT_UP = Threshold(
    "caught_up",
    0.50,
    "ratio",
    (
        "a GPU that is the limit has work left at the end of nearly every step, and one that waits"
        " has none; half separates them"
    ),
)
WAITED = Threshold(
    "waited",
    0.05,
    "ratio",
    "5 % of a step in calls that wait for the GPU (train-doctor 0.05, fournex 0.10; survey T10)",
)
CALLS = Threshold(
    "waits_per_pass",
    5.0,
    "",
    (
        "up to four waits at the end of a pass are usual (loss, gradient norm, scaler, accuracy);"
        " the GPU then works meanwhile"
    ),
)
COPIES = Threshold(
    "h2d",
    0.10,
    "ratio",
    "10 % of a step, in time of the CUDA stream (TraceML 0.10 and 0.20, fournex 0.15; survey T07)",
)
BY_SAMPLES = ", by stack samples"
SM_BUSY = 0.80
"""SMs that are active for 80 % of the time belong to a GPU that is busy all the time: kernels start
and end with some SMs empty (DCGM's guide: 80 % is necessary for effective use, below 50 % is likely
ineffective use; GPT-2 small in bf16 on an H100 has 85 %)."""

GRADIENTS = 1.5
"""A backward pass has two matrix products for each of the forward pass, and reads at least as much
memory: 2 times as long for products, 1.5 and more for pointwise operators, and more with
recomputation."""
WHOLE_MODEL = 0.9
"""Share of trained parameters from which the whole model has a backward pass."""
IDLE_UTIL = 0.80
"""GPU-Util counts the time in which any kernel ran, also one that fills few SMs. From here on, it
does not say that the GPU is idle."""


def mfu_level(case: Case) -> float:
    """MFU over its threshold: by the causal count where attention is known to be causal, else by
    the full count. Forward passes that the backward pass repeats keep the GPU busy, too: HFU counts
    with the threshold of the full count. Where the power cap lowers the clock, the thresholds are
    lower by as much. Raises Missing."""
    level = (
        case.value("mfu_causal_ratio") / MFU_CAUSAL
        if case.has("mfu_causal_ratio")
        else case.value("mfu_ratio") / MFU
    )
    return max(level, case.get("hfu_ratio", 0.0) / MFU) / capped_clock(case)


def mfu_evidence(case: Case) -> tuple[Evidence, ...]:
    """MFU by each count that is known, the one that decides with its threshold; the clock, where it
    lowers the threshold. Raises Missing."""
    scale = capped_clock(case)
    capped = (
        case.evidence("hw.datasheet_clock_ratio", "hw.power_cap_time_ratio") if scale < 1 else ()
    )
    recomputed = case.if_known(("hfu_ratio", MFU * scale))
    if case.has("mfu_causal_ratio"):
        return (
            case.evidence(("mfu_causal_ratio", MFU_CAUSAL * scale), "mfu_ratio")
            + recomputed
            + capped
        )
    return case.evidence(("mfu_ratio", MFU * scale)) + recomputed + capped


def computes_well(case: Case) -> bool:
    """Whether MFU is known and reaches its threshold. Such a GPU does not wait for launches or for
    the host."""
    return case.has("mfu_ratio") and mfu_level(case) >= 1


def knows_the_lead(case: Case) -> bool:
    """Whether the agent has seen how far the host is ahead of the GPU, and the calls that wait for
    it; a probe that measures launches comes first."""
    return not case.has("probe.issue_s") and case.has(
        "host.caught_up_ratio", "sync.wait_s", "sync.calls"
    )


def waited_ratio(case: Case) -> float:
    """Share of a step in which the host waits for the GPU: in calls that the agent times, or as far
    as the host was ahead of the GPU before it waited. Torch waits in more functions than the agent
    times (`x[mask]`, `torch.where(mask)`, copies of single numbers). Raises Missing."""
    return min(
        1.0,
        max(case.value("sync.wait_s") / case.value("step_s"), case.get("host.ahead_ratio", 0.0)),
    )


def waiting_code(case: Case) -> tuple[CodePlace | None, bool]:
    """Return the line of the program at which the host waits for the GPU, None if it is
    not known. Return also whether stack samples name this line: the agent then neither times nor
    counts the calls at this line. Raises Missing.

    The agent times some calls that wait. Without other evidence, it is the line with most of this
    time. Stack samples win if they find the thread outside of Python, at one line, for longer than
    all timed calls take, and for at least half of the time by which the host was ahead of the GPU.
    """
    timed, sampled = (
        case.value("sync.wait_s") / case.value("step_s"),
        case.get("stack.outside_ratio", 0.0),
    )
    if (
        sampled > timed
        and sampled >= max(WAITED, case.get("host.ahead_ratio", 0.0) / 2)
        and case.has("host.ahead_ratio")
    ):
        return case.place("stack.outside_ratio"), True
    return case.place("sync.wait_s"), False


def waiting_place(case: Case) -> tuple[str, bool]:
    """Return what `waiting_code` returns, with the line in words; empty if it is not known. Raise
    Missing."""
    place, sampled = waiting_code(case)
    if place is None:
        return "", sampled
    called = f", called by {place.caller}" if sampled and place.caller else ""
    return f"{place}{called}{BY_SAMPLES if sampled else ''}", sampled


def host_is_limit(case: Case) -> bool:
    """Whether the host, not the GPU, decides how long a step takes. Raises Missing.

    A program that reads the loss at the end of each step waits until the GPU has caught up,
    although the GPU is the limit: a few long waits.
    """
    if case.value("host.caught_up_ratio") < CAUGHT_UP:
        return False
    return waited_ratio(case) < WAITED or waits_per_pass(case) >= CALLS


def waits_per_pass(case: Case) -> float:
    """Calls that wait for the GPU, for each forward and backward pass. Raises Missing."""
    return case.value("sync.calls") / max(1, int(case.knobs.get("gradient_accumulation_steps", 1)))


def beside_passes(case: Case) -> float:
    """Share of a step in which the host makes no GPU work by design: data, copies, side work, lines
    outside of the phases. Raises Missing."""
    others = sum(case.value(f"{phase}_ratio") for phase in ("data_wait", "h2d", "other"))
    return min(1.0, others + sum(case.recent(phase) for phase in ("logging", "checkpoint", "eval")))


def busy_ratio(case: Case) -> float | None:
    """Share of a step in which the GPU works: by its active SMs, else by MFU over the MFU of a busy
    GPU. It works for at least as long as the host waits for it. What a checkpoint repeats keeps the
    GPU busy, too. Where neither is known, or the FLOPs of some operators are not, it works for at
    most GPU-Util; that says something only where it is low. Else None. Raises Missing."""
    basis = _busy_by(case)
    if basis == "gpu.sm_active_ratio":
        share = case.value(basis) / SM_BUSY
    elif basis == "mfu_ratio":
        share = mfu_level(case)
    elif basis:
        share = case.value(basis)
    else:
        return None
    return min(1.0, max(share, waited_ratio(case)))


def idle_in_forward(case: Case) -> float:
    """Share of a step in which the GPU has no work in the forward pass, at least: a backward pass
    that the GPU limits takes GRADIENTS times as long as the work of the forward pass, or longer. 0
    where a part of the model is frozen, so that its backward pass is shorter. Raises Missing."""
    if case.get("model.trained_ratio", 0.0) < WHOLE_MODEL:
        return 0.0
    return max(0.0, case.value("forward_ratio") - case.value("backward_ratio") / GRADIENTS)


def idle_in_part(case: Case, place: CodePlace | None) -> float:
    """Return for which share of a step the GPU has no work, at most, while the host is at `place`.

    Where the GPU has work left at the end of a step, the GPU limits the backward pass, and the time
    of that pass gives the work in the forward pass: see `idle_in_forward`. Waits within the forward
    pass are then waits for work that the GPU does.
    """
    most = idle(case).most
    if (
        place is None
        or place.part != "forward"
        or case.get("host.caught_up_ratio", 1.0) >= CAUGHT_UP
        or case.get("model.trained_ratio", 0.0) < WHOLE_MODEL
        or not case.has("forward_ratio", "backward_ratio")
    ):
        return most
    return min(most, idle_in_forward(case))


IDLE_SIGNALS = (
    "is_gpu", "gpu.util_ratio", "gpu.sm_active_ratio", "hw.other_processes", "host.caught_up_ratio",
    "host.ahead_ratio", "sync.calls", "sync.wait_s", "step_s", "forward_ratio", "backward_ratio",
    "model.trained_ratio",
)  # fmt: skip
"""What `idle` reads."""
HALF = 0.5
"""A rule loses its claim to a time if the GPU works for more than this part of it. The driver is
read once a second, so a finer comparison would compare errors."""


class Idle(NamedTuple):
    """The share of a step in which the GPU has no work. `least`: measured, no kernel runs at all.
    `most`: no measurement shows that the GPU works in this share."""

    least: float
    most: float


def idle(case: Case) -> Idle:
    """Return for which share of a step the GPU has no work. No other function decides this.

    The driver measures the time without a kernel (GPU-Util) and the work of the SMs. GPU-Util
    counts gaps between short kernels as work. So it is an upper bound of the idle time only if the
    host issues kernels in time: the host is ahead of the GPU at the end of a step, or waits for the
    GPU a few times. The GPU also works while the host waits for it. Without the driver's counters,
    the function assumes that the GPU works in the whole backward pass. The time of the backward
    pass then gives the work in the forward pass. On a CPU, or without any measurement, the idle
    time has no upper bound.
    """
    if not case.get("is_gpu", 0.0):
        return Idle(0.0, 1.0)
    # the driver's list of processes is often not reliable in a container: the GPU's work then
    # counts as the job's
    alone = not case.get("hw.other_processes", 0.0)
    util = case.get("gpu.util_ratio", 1.0) if case.has("gpu.util_ratio") else None
    least = 0.0 if util is None else max(0.0, 1 - util)
    limits = [1.0]
    if case.has("gpu.sm_active_ratio") and alone:
        busy = case.value("gpu.sm_active_ratio")
        limits.append(1 - (busy / SM_BUSY if util is None else busy))
    if case.has("sync.wait_s", "step_s"):
        limits.append(1 - waited_ratio(case))
    knows = _knows_waits(case)
    if not (knows and _issues_late(case)):
        if util is not None and alone:
            limits.append(least)
        elif knows:
            passes = case.value("forward_ratio") + case.value("backward_ratio")
            limits.append(1 - passes + idle_in_forward(case))
    most = max(0.0, min(limits))
    return Idle(min(least, most), most)


def _knows_waits(case: Case) -> bool:
    return case.has(
        "host.caught_up_ratio", "sync.wait_s", "sync.calls", "step_s", "forward_ratio",
        "backward_ratio",
    )  # fmt: skip


def _issues_late(case: Case) -> bool:
    """Return whether the GPU may have no work many times within a pass: the host is the limit, or
    waits for the GPU again and again. Raise Missing."""
    often = waits_per_pass(case) >= CALLS and waited_ratio(case) >= WAITED
    return often or host_is_limit(case)


def knows_idle(case: Case) -> bool:
    """Return whether `idle` is measured. Without it, rules that measure only the host must not
    blame the host."""
    if case.has("gpu.util_ratio") or case.has("gpu.sm_active_ratio"):
        return True
    late = case.get("host.caught_up_ratio", 0.0) >= CAUGHT_UP
    return late or not case.get("is_gpu", 0.0) or _knows_waits(case)


def works_in(case: Case, share: float) -> bool:
    """Return whether the GPU works for most of a time that a rule would call lost. `share`: this
    time on the host or on the stream, as a share of a step."""
    return idle(case).most < HALF * share


def lost(case: Case, share: float) -> float:
    """Return in which share of a step, out of `share` on the stream, the GPU may have no work.
    Return 0 if `works_in` is true, and `share` on a CPU."""
    most = idle(case).most
    return 0.0 if most < HALF * share else min(share, most)


def with_core_ratio(case: Case) -> float:
    """Return the share of the time on the stream in which the training thread does not wait for a
    core. Times of the host are already without this wait; times of the stream are not. Return 1 on
    a CPU."""
    return 1 - case.get("runq_ratio", 0.0) if case.get("is_gpu", 0.0) else 1.0


def idle_words(case: Case) -> str:
    """Return the words "the GPU works meanwhile" with the figures that show it."""
    shown = [
        f"{name} {percent(case.value(signal))}"
        for name, signal in (("GPU-Util", "gpu.util_ratio"), ("SM active", "gpu.sm_active_ratio"))
        if case.has(signal)
    ]
    return "the GPU works meanwhile" + (f" ({', '.join(shown)})" if shown else "")


def idle_evidence(case: Case) -> tuple[Evidence, ...]:
    """Return the figures from which `idle` is computed; none on a CPU."""
    if not case.get("is_gpu", 0.0):
        return ()
    return case.if_known("gpu.util_ratio", "gpu.sm_active_ratio", "host.caught_up_ratio")


def busy_words(case: Case) -> str:
    """Return the figure by which `busy_ratio` is known, in words: "SM active is 12 %". Raises
    Missing."""
    names = {"gpu.sm_active_ratio": "SM active", "mfu_ratio": "MFU", "gpu.util_ratio": "GPU-Util"}
    basis = _busy_by(case)
    return f"{names[basis]} is {percent(case.value(basis))}" if basis else ""


def _busy_by(case: Case) -> str:
    """The signal by which it is known for how long the GPU works; empty where none tells it."""
    whole = not case.get("mfu_at_least", 0.0)
    if case.has("gpu.sm_active_ratio"):
        return "gpu.sm_active_ratio"
    if case.has("mfu_ratio") and whole:
        return "mfu_ratio"
    return "gpu.util_ratio" if case.get("gpu.util_ratio", 1.0) < IDLE_UTIL else ""


def busy_evidence(case: Case) -> tuple[Evidence, ...]:
    """What `busy_ratio` and `host_is_limit` are made from."""
    known = case.if_known(
        ("host.ahead_ratio", WAITED), "gpu.sm_active_ratio", "gpu.util_ratio", "mfu_ratio"
    )
    return (
        case.evidence(
            ("host.caught_up_ratio", CAUGHT_UP),
            "sync.calls",
            ("sync.wait_s", WAITED * case.value("step_s")),
            "step_s",
        )
        + known
    )
