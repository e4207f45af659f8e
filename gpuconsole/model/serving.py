"""Requests to a model server, as the client that sent them measured them, and what the server tells of itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SERVING_PHASES = ("client_queue", "queue", "prefill", "decode", "transport")
"""The exclusive parts of a request's time, as seen by the client; they sum to 1.

`client_queue`: in the client, before it was sent. `queue`, `prefill`, `decode`: by the server's own account. `transport`: the rest of E2E.
"""

FORMULAS = {
    "ttft_s": "TTFT: request sent to first token",
    "itl_s": "ITL: gap between tokens; a chunk of k tokens is k gaps of gap/k",
    "chunk_gap_s": "chunk gap: between two chunks, however many tokens they hold (vLLM bench calls this ITL)",
    "tpot_s": "TPOT: (E2E - TTFT) / (output tokens - 1), per request",
    "e2e_s": "E2E: request sent to last token",
    "client_queue_s": "client queue: due to sent, in the client",
}
"""What each latency is, since the clients of the field use the same words for different things."""


PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def served_precision(knobs: Mapping[str, object]) -> str:
    """The precision that a server with these knobs computes in, as peaks are named: models are published in bf16 where nothing is said."""
    return PRECISIONS.get(str(knobs.get("dtype")), "bf16")


LIVE_KNOBS = ("max_num_seqs", "max_num_batched_tokens")
"""Limits of a scheduler, which can be lowered while it runs: up to what the server was started with, which its facts tell."""


def live_limit(name: str) -> str:
    """The fact that tells up to which value the server of a run takes knob `name` without a restart."""
    return f"live_limit.{name}"


def within_live_limit(name: str, value: object, facts: Mapping[str, float]) -> bool:
    """Whether the server of which these are the facts takes `value` without a restart."""
    limit = facts.get(live_limit(name))
    return limit is not None and isinstance(value, int) and value <= limit


class Request(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request. Times in seconds; `t` is its end on CLOCK_MONOTONIC.

    `gaps` lie between its chunks, `counts` are the tokens that each of those chunks brought (the first chunk has no gap, and stands
    in neither). `error`: why it failed; then `ttft_s` and `e2e_s` may be missing. `kind`: 0 counts, 1 settling, 2 belongs to a probe.
    """

    t: float
    client_queue_s: float
    ttft_s: float | None
    e2e_s: float | None
    prompt_tokens: int
    output_tokens: int
    gaps: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    error: str = ""
    arm: int = 0
    kind: int = 0

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); None with less than two tokens."""
        if self.ttft_s is None or self.e2e_s is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


class Objective(msgspec.Struct, frozen=True):
    """What a request must keep to count as good (`--slo`): upper bounds in seconds, None where there is none."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met(self, request: Request) -> bool:
        pairs = ((self.ttft_s, request.ttft_s), (self.tpot_s, request.tpot_s or 0.0), (self.e2e_s, request.e2e_s))
        return not request.error and all(bound is None or (value is not None and value <= bound) for bound, value in pairs)


def parse_objective(text: str) -> Objective:
    """`ttft=0.5,tpot=0.05`, in seconds. Raises ValueError with a line for the user."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in ("ttft", "tpot", "e2e"):
            raise ValueError(f"{part!r}: expected ttft=S, tpot=S or e2e=S")
        try:
            bounds[f"{name.strip()}_s"] = float(value)
        except ValueError:
            raise ValueError(f"{part!r}: {value!r} is not a number of seconds") from None
        if not bounds[f"{name.strip()}_s"] > 0:
            raise ValueError(f"{part!r}: must be more than 0 s")
    return Objective(**bounds)
