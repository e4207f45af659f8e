"""h2d.pageable_or_serial: batches are copied to the GPU from pageable memory, or while the GPU waits."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import MOST, Case, Finding, Interval, Knobs, Rule, Threshold, high_if, percent, speedup_interval

SHARE = Threshold("h2d", 0.10, "ratio", "10 % of a step, in time of the CUDA stream (TraceML 0.10 and 0.20, fournex 0.15; survey T07)")
SERIOUS = 0.20
ERROR = 0.3
PROBE = "probe.h2d_pinned_s"
COPIES = "h2d.pageable_copies"
"""Copies a step from pageable memory, counted in a user's own job."""
PINNED: Knobs = {"pin_memory": True, "non_blocking": True}
PINNED_CODE = "DataLoader(..., pin_memory=True); batch = batch.to(device, non_blocking=True)"
BY_HAND_CODE = "batch = batch.pin_memory().to(device, non_blocking=True)"
AHEAD_CODE = "with torch.cuda.stream(side): ahead = next_batch.to(device, non_blocking=True)   # then current_stream().wait_stream(side)"


class H2dPageable(Rule):
    id = "h2d.pageable_or_serial"
    title = "The GPU waits for batches to be copied"
    clear_title = "Copies to the GPU take little time"
    gpu_only = True
    thresholds = (SHARE,)
    knobs = ("non_blocking", "pin_memory", "h2d_stream")
    reads = ("is_gpu", "h2d_ratio", "probe.h2d_pageable_s", "probe.h2d_pinned_s", "h2d.pageable_copies")
    text = """CUDA events in the stream measure how long a batch is copied before the stream can compute. On the host's clock, a copy that waits for the
previous step would be charged for that wait. From pageable memory the driver copies twice, and non_blocking=True is then silently synchronous.
Pinned memory makes the copy faster: probe P10 copies the present batch both ways and measures the difference. A separate stream hides the
copy behind the work. In a user's own job the agent counts for a few steps which copies begin in pageable memory. If both are in use already, only fewer bytes help."""

    def judge(self, case: Case) -> Finding:
        share = case.value("h2d_ratio")
        evidence = case.evidence(("h2d_ratio", SHARE)) + case.if_known("probe.h2d_pageable_s", PROBE, COPIES)
        if share < SHARE:
            return self.clear(share / SHARE * 0.99, evidence)
        copies = case.get(COPIES, 0.0) > 0
        pageable = copies or _differs(case, PINNED)
        serial = case.knobs.get("h2d_stream") is False
        how = (
            "from pageable memory"
            if copies or case.knobs.get("pin_memory") is False
            else "and the host waits for it"
            if pageable
            else "before the step begins"
        )
        fixable = pageable or serial
        by_hand = f"; a change in the program's own code: {BY_HAND_CODE}" if copies and not _changes(case, PINNED) else ""
        summary = (
            f"copying the batch to the GPU takes {percent(share)} of a step, {how}{by_hand}"
            if fixable
            else f"copying takes {percent(share)} of a step, although from pinned memory and in parallel with the work: send fewer bytes (uint8 inputs, fewer columns)"
        )
        why0 = "copies from page-locked memory are faster, and the host need not wait for them"
        change0 = (
            case.suggest(_changes(case, PINNED), _by_pinning(case, share), why0, PINNED_CODE)
            if pageable and _changes(case, PINNED)
            else None
        )
        why1 = "the next batch is copied while the present batch computes"
        change1 = case.suggest(_changes(case, {**PINNED, "h2d_stream": True}), _by_overlap(share), why1, AHEAD_CODE) if serial else None
        recoverable = share if fixable else 0.0
        missing = (PROBE,) if pageable and not case.has(PROBE) else ()
        return self.fires(
            share / SHARE,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(share >= SERIOUS),
            note=not fixable,
            for_prediction=missing,
            suggestions=[change0, change1],
        )


def _differs(case: Case, wanted: Knobs) -> bool:
    return any(name in case.knobs and case.knobs[name] != value for name, value in wanted.items())


def _changes(case: Case, wanted: Knobs) -> Knobs:
    """The entries of `wanted` whose knob exists in this workload with another value."""
    return {name: value for name, value in wanted.items() if name in case.knobs and case.knobs[name] != value}


def _by_pinning(case: Case, share: float) -> Interval | None:
    """T' = T - h2d (1 - t_pinned / t_pageable), both measured by probe P10 on this batch; None before the probe."""
    if case.knobs.get("pin_memory") is not False or not case.has(PROBE):
        return None
    saved = share * max(0.0, 1 - case.value(PROBE) / max(1e-9, case.value("probe.h2d_pageable_s")))
    return speedup_interval(1 / (1 - min(MOST, saved)), ERROR)


def _by_overlap(share: float) -> Interval:
    """The best case: copy and other work overlap completely, so the step takes the longer of the two times."""
    return Interval(1.0, 1 / max(share, 1 - share))
