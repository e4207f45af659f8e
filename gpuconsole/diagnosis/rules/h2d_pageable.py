"""h2d.pageable_or_serial: batches are copied to the GPU from pageable memory, or while the GPU
waits."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.families.device import COPIES as SHARE
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    Finding,
    Interval,
    Knobs,
    Rule,
    high_if,
    percent,
    speedup_interval,
)

SERIOUS = 0.20
MIN_PINNED = 0.5
"""The share of the rate of the link that a copy from page-locked memory reaches at least; 80 % are
usual."""
MIN_PAGEABLE_BYTES_PER_S = 2e9
"""The least rate of a copy from pageable memory: one core copies the bytes to a buffer of the
driver first, with 3 to 12 GB/s."""
ERROR = 0.3
PROBE = "probe.h2d_pinned_s"
COPIES = "h2d.pageable_copies"
"""Copies a step from pageable memory, counted in a user's own job."""
PINNED: Knobs = {"pin_memory": True, "non_blocking": True}
PINNED_CODE = "DataLoader(..., pin_memory=True); batch = batch.to(device, non_blocking=True)"
BY_HAND_CODE = "batch = batch.pin_memory().to(device, non_blocking=True)"
AHEAD_CODE = (
    "with torch.cuda.stream(side): ahead = next_batch.to(device, non_blocking=True)   # then"
    " current_stream().wait_stream(side)"
)


class H2dPageable(Rule):
    id = "h2d.pageable_or_serial"
    title = "The GPU waits for batches to be copied"
    clear_title = "Copies to the GPU take little time"
    gpu_only = True
    thresholds = (SHARE,)
    knobs = ("non_blocking", "pin_memory", "h2d_stream")
    reads = (
        "h2d_ratio", "probe.h2d_pageable_s", "probe.h2d_pinned_s", "h2d.pageable_copies",
        "h2d.pageable_bytes", "h2d.pinned_bytes", "link.pcie_peak_bytes_per_s",
        *device.IDLE_SIGNALS,
    )  # fmt: skip
    text = """CUDA events in the stream measure how long a batch is copied before the stream can
compute. On the host's clock, a copy that waits for the previous step would be charged for that
wait. From pageable memory the driver copies twice, and non_blocking=True is then silently
synchronous. Pinned memory makes the copy faster: probe P10 copies the present batch both ways and
measures the difference. A separate stream hides the copy behind the work. In a user's own job the
agent counts for a few steps which copies begin in pageable memory, and their bytes. What lies
between a batch and its pass, and is more than these bytes can take, is no copy. If both are in use
already, only fewer bytes help."""

    def judge(self, case: Case) -> Finding:
        share = case.value("h2d_ratio")
        evidence = case.evidence(("h2d_ratio", SHARE)) + case.if_known(
            "probe.h2d_pageable_s", PROBE, COPIES
        )
        if share < SHARE:
            return self.clear(share / SHARE * 0.99, evidence)
        if device.works_in(case, share):
            words = f"{percent(share)} of a step lies between a batch and its pass, and"
            evidence += device.idle_evidence(case)
            return self.clear(0.0, evidence, f"{words} {device.idle_words(case)}")
        longest = _longest_copy(case)
        if longest is not None and longest < SHARE:
            evidence += case.if_known(
                "h2d.pageable_bytes", "h2d.pinned_bytes", "link.pcie_peak_bytes_per_s"
            )
            work = (
                f"{percent(share)} of a step lies between a batch and its pass, and the copy of the"
                f" batch takes at most {percent(longest)}: the program works there"
            )
            return self.clear(0.0, evidence, work)
        share = device.lost(case, share if longest is None else min(share, longest))
        copies, serial, pinning = (
            case.get(COPIES, 0.0) > 0,
            case.knobs.get("h2d_stream") is False,
            _changes(case, PINNED),
        )
        pageable = copies or bool(pinning)
        confidence = high_if(share >= SERIOUS)
        if not pageable and not serial:
            summary = (
                f"copying takes {percent(share)} of a step, although from pinned memory and in"
                " parallel with the work: send fewer bytes (uint8 inputs, fewer columns)"
            )
            return self.note(share / SHARE, evidence, summary, confidence=confidence)
        from_pageable = copies or case.knobs.get("pin_memory") is False
        how = (
            "from pageable memory"
            if from_pageable
            else "and the host waits for it"
            if pageable
            else "before the step begins"
        )
        by_hand = (
            f"; a change in the program's own code: {BY_HAND_CODE}"
            if copies and not pinning
            else ""
        )
        summary = f"copying the batch to the GPU takes {percent(share)} of a step, {how}{by_hand}"
        why = "copies from page-locked memory are faster, and the host need not wait for them"
        pinned = (
            case.suggest(pinning, _by_pinning(case, share), why, PINNED_CODE) if pinning else None
        )
        why = "the next batch is copied while the current batch computes"
        ahead = (
            case.suggest(
                _changes(case, {**PINNED, "h2d_stream": True}), _by_overlap(share), why, AHEAD_CODE
            )
            if serial
            else None
        )
        missing = (PROBE,) if pageable and not case.has(PROBE) else ()
        level, changes = share / SHARE, [pinned, ahead]
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share,
            confidence=confidence,
            suggestions=changes,
            for_prediction=missing,
        )


def _longest_copy(case: Case) -> float | None:
    """Return the share of a step that the copies of a batch take at most, from their bytes and the
    rate of the link; None if the bytes are not known. The rest of the time between a batch and its
    pass is no copy, but augmentation on the GPU or Python of the program."""
    pageable, pinned = case.get("h2d.pageable_bytes", 0.0), case.get("h2d.pinned_bytes", 0.0)
    if not pageable + pinned:
        return None  # the program copies in a way that is not seen
    link = case.get("link.pcie_peak_bytes_per_s", 0.0)
    seconds = pageable / MIN_PAGEABLE_BYTES_PER_S
    seconds += pinned / max(MIN_PAGEABLE_BYTES_PER_S, MIN_PINNED * link)
    return min(1.0, seconds / case.value("step_s"))


def _changes(case: Case, wanted: Knobs) -> Knobs:
    """The entries of `wanted` whose knob exists in this workload with another value."""
    return {
        name: value
        for name, value in wanted.items()
        if name in case.knobs and case.knobs[name] != value
    }


def _by_pinning(case: Case, share: float) -> Interval | None:
    """T' = T - h2d (1 - t_pinned / t_pageable), both measured by probe P10 on this batch; None
    before the probe."""
    if case.knobs.get("pin_memory") is not False or not case.has(PROBE):
        return None
    saved = share * max(0.0, 1 - case.value(PROBE) / max(1e-9, case.value("probe.h2d_pageable_s")))
    return speedup_interval(1 / (1 - min(MAX_SHARE, saved)), ERROR)


def _by_overlap(share: float) -> Interval:
    """The best case: copy and other work overlap completely, so the step takes the longer of the
    two times."""
    return Interval(1.0, 1 / max(share, 1 - share))
