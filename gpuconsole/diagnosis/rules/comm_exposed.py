"""comm.exposed: the step waits for gradients or layers to be exchanged between processes."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm
from gpuconsole.diagnosis.rule import (
    CantTell,
    Case,
    Confidence,
    Evidence,
    Finding,
    Knobs,
    Rule,
    Suggestion,
    high_if,
    percent,
    speedup_interval,
)

FEWER_EXCHANGES = 4
PREDICTION_ERROR = 0.25


class CommExposed(Rule):
    id = "comm.exposed"
    title = "The step waits for communication"
    clear_title = "Computation hides the communication"
    thresholds = (comm.EXPOSED,)
    knobs = ("sharding", "tensor_parallel", "gradient_accumulation_steps", "comm_hook")
    reads = (
        "step_s", "ranks.least_comm_ratio", "comm.exchanges_per_step", "comm.exposed_s",
        "comm.pass_s", "comm.pass_alone_s", "comm.exposed_spread_s", "comm.bytes_per_step",
        "optimizer_ratio", "comm.exchange_large_s", "comm.exchange_now_s", "comm.outside_ratio",
        "comm.collectives_s", "comm.buffer_bytes", "stack.comm_ratio",
    )  # fmt: skip
    text = """Probe P7 runs passes on a resident batch with and without communication, alternately
and on all processes at once (DDP: no_sync(); sharded models and split matrices: collectives that
return local data). The exposed time is the time of a pass with communication minus the time of the
slowest process without it: no computation hides this part. In ordinary steps, the process that
communicates least has waited for no other process. Its communication time counts where it is more
than the probe's. Waiting for a slow process is not counted: see comm.straggler.
In a user's job nothing is tried. DistributedDataParallel has a timer of its own. The exposed time
is the time from the last gradient to the end of the exchange, in the process that waits least.
Without DistributedDataParallel, it is the time of the collectives that the program calls.
With FSDP on a CPU this time is a lower bound. With FSDP 2 on a GPU the lower bound is the time in
which the computation waits for gathered parameters in the forward pass. With other sharding on a
GPU the exposed time is not known. NCCL's durations give an upper bound: torch records them if
TORCH_NCCL_ENABLE_TIMING=1 is in the environment of the job. Collectives that exchange no gradients,
such as metrics, do not count: see comm.outside_backward. If most of the exposed time goes to the
buffers of a DistributedDataParallel module, accumulation does not help, and the finding says so.
Predicted for k times as many accumulation passes: T' = T - (E + O) (1 - 1/k), with T the time of a
step, O the time of the optimizer and E the exposed time of gradients. E is all exposed time with
ddp and zero1, a half with zero2 and a third with zero3: their other transfers
gather parameters in every pass."""

    def judge(self, case: Case) -> Finding:
        if not comm.several(case):
            return self.clear(summary="one process only, or processes that exchange nothing")
        limit = comm.EXPOSED
        if not case.has("comm.exposed_s") and case.has("comm.collectives_s"):
            return self._at_most(case)
        ratio = comm.exposed_ratio(case)
        evidence = case.evidence(
            ("comm.exposed_s", limit * case.value("step_s")),
            "comm.pass_s",
            "comm.pass_alone_s",
            "step_s",
        )
        evidence += case.if_known(("ranks.least_comm_ratio", limit))
        if ratio < limit:
            return self.clear(ratio / limit, evidence)
        certain = case.value("comm.exposed_s") > 2 * case.get("comm.exposed_spread_s", 0.0)
        confidence: Confidence = high_if(ratio >= 2 * limit) if certain else "low"
        buffers = comm.buffers_ratio(case)
        if buffers >= ratio / 2:
            return self._buffers(case, buffers, evidence)
        if int(case.knobs.get("tensor_parallel", 1)) > 1:
            exchanged, recoverable = "every layer sums its results over the processes", ratio
            why = "gradients are exchanged once per step instead of results in every layer"
            whole: Knobs = {"tensor_parallel": 1, "sharding": "ddp"}
            gain = speedup_interval(1 / (1 - ratio), 0.5)
            changes = [case.suggest(whole, gain, why, "model = DistributedDataParallel(model)")]
        else:
            exchanged, recoverable = (
                _gradients(case),
                comm.gradients_ratio(case) * (1 - 1 / FEWER_EXCHANGES),
            )
            changes = [_rarer(case), _narrow(case, ratio)]
        summary = (
            f"{percent(ratio)} of a step is communication that computation does not hide"
            f" ({exchanged})"
        )
        level = ratio / limit
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=confidence,
            suggestions=changes,
        )

    def _buffers(self, case: Case, ratio: float, evidence: tuple[Evidence, ...]) -> Finding:
        """Name the buffers of a DDP module. Process 0 sends these buffers before each forward
        pass."""
        evidence += case.evidence("comm.buffer_bytes", "comm.bytes_per_step")
        evidence += case.if_known("stack.comm_ratio")
        place = case.place("stack.comm_ratio")
        summary = (
            f"{percent(ratio)} of a step goes to {case.value('comm.buffer_bytes') / 1e6:.3g} MB of"
            " buffers that process 0 sends to the others before each forward pass"
            f"{f', at {place}' if place is not None else ''}. With"
            " DistributedDataParallel(..., broadcast_buffers=False) it does not: each process then"
            " keeps its own, for example its own statistics of batch norm"
        )
        return self.fires(
            ratio / comm.EXPOSED,
            evidence,
            summary,
            recoverable=ratio,
            confidence=high_if(ratio >= 2 * comm.EXPOSED),
            title="Buffers are sent to all processes in every forward pass",
        )

    def _at_most(self, case: Case) -> Finding:
        """Judge by the time of all collectives. How much of this time computation hides is not
        known."""
        taken, step, limit = (
            case.value("comm.collectives_s"),
            case.value("step_s"),
            comm.EXPOSED * case.value("step_s"),
        )
        if taken < limit:
            return self.clear(taken / limit, case.evidence(("comm.collectives_s", limit), "step_s"))
        raise CantTell(
            f"communication takes {1e3 * taken:.0f} ms of a step of {1e3 * step:.0f} ms; how much"
            " of it computation hides is not known. f (torch.profiler) shows it for one process"
        )


def _gradients(case: Case) -> str:
    gathers = (
        ", and the parameters that each pass gathers" if comm.share_of_gradients(case) < 1 else ""
    )
    return f"{case.value('comm.bytes_per_step') / 1e6:.0f} MB of gradients per step{gathers}"


def _rarer(case: Case) -> Suggestion | None:
    passes = int(case.knobs.get("gradient_accumulation_steps", 1)) * FEWER_EXCHANGES
    gain = speedup_interval(predicted(case, FEWER_EXCHANGES), PREDICTION_ERROR)
    why = (
        f"gradients are exchanged once in {passes} passes. This changes training: the effective"
        " batch grows by the same factor"
    )
    return case.suggest({"gradient_accumulation_steps": passes}, gain, why, code_for(passes))


def code_for(passes: int) -> str:
    """One exchange in `passes` passes. The forward pass stands under no_sync(), too: it decides
    whether the backward pass exchanges."""
    return f"""with model.no_sync() if (i + 1) % {passes} else nullcontext():
    loss = loss_function(model(inputs), targets)
    (loss / {passes}).backward()"""


def _narrow(case: Case, ratio: float) -> Suggestion | None:
    if case.knobs.get("sharding") not in ("ddp", "zero1") or case.knobs.get("comm_hook") != "none":
        return None
    code = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    return case.suggest(
        {"comm_hook": "bf16"},
        speedup_interval(1 / (1 - ratio / 2), 0.5),
        "half as many bytes are exchanged",
        code,
    )


def predicted(case: Case, rarer: int) -> float:
    """Speed-up in samples/s with exchange and optimizer once in `rarer` passes: T' = T - (E + O)
    (1 - 1/rarer) per pass."""
    step = case.value("step_s")
    saved = (comm.gradients_ratio(case) + case.value("optimizer_ratio")) * step * (1 - 1 / rarer)
    return step / max(0.05 * step, step - saved)
