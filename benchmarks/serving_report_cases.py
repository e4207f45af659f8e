"""Public reports of slow or broken model servers, and healthy servers, for
`benchmarks.serving_reports`.

`figures` are those of the report; what the report leaves open (the lengths of requests, a gap that
fits the rate) is set so that it fits. `cause` is what the thread says, and who says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Spread = tuple[tuple[float, float], ...]
"""Values, each with its share."""


class Load(NamedTuple):
    """What one engine does. Rates are per second: tokens that are generated (`tokens`), that are
    `drafted` and `accepted`, and of prompts; requests that `ended`, were `aborted` or `preempted`.

    `gaps`: between two tokens of a request. `hits`: share of the prompt tokens. `wave`: by how much
    the number of running requests varies. `free`: share of the readings at which a request has just
    ended and its place is free. `bursts`: seconds with load and seconds without, in turn. `forward`
    and `host`: shares of the time in forward passes, and on the host between them."""

    running: float
    waiting: float = 0.0
    kv: float = 0.0
    tokens: float = 0.0
    prompt: float = 0.0
    ended: float = 0.0
    gaps: Spread = ()
    ttft: float = 0.1
    queue: float = 0.0
    e2e: float = 10.0
    prompt_length: float = 1000.0
    output_length: float = 200.0
    aborted: float = 0.0
    preempted: float = 0.0
    hits: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    deferred: float = 0.0
    wave: float = 0.0
    free: float = 0.0
    bursts: tuple[float, float] = (1.0, 0.0)
    forward: float = 0.0
    host: float = 0.0


@dataclass(frozen=True)
class Case:
    """`source`: OWNER/REPOSITORY#NUMBER on GitHub; empty for a healthy page of ours. `accept`: the
    rules (of the family `serve`) that name the cause; `half`: those that name half of it. `seats`:
    the limit of running sequences that the server tells. `more`: further lines of the page."""

    engine: str
    loads: tuple[Load, ...]
    source: str = ""
    figures: str = ""
    cause: str = ""
    accept: frozenset[str] = frozenset()
    half: frozenset[str] = frozenset()
    seats: int = 0
    more: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return not self.source

    @property
    def url(self) -> str:
        return f"https://github.com/{self.source.replace('#', '/issues/')}"

    @property
    def expected(self) -> str:
        if self.healthy:
            return "nothing accused"
        return " or ".join(sorted(self.accept)) or "no conclusion"


def rules(names: str) -> frozenset[str]:
    return frozenset(names.split())


def even(seconds: float) -> Spread:
    """Gaps of this length, of which every fifth is a quarter longer."""
    return ((seconds * 0.95, 0.8), (seconds * 1.2, 0.2))


def stalled(seconds: float, share: float, other: float) -> Spread:
    return ((other, 1 - share), (seconds, share))


_FULL_RANKS = (
    Load(51, 117, 1.0, 1157, 900, 0.6, even(0.044), 120, 119, 200, preempted=0.3, hits=0.7),
    Load(31, 108, 0.986, 809, 700, 0.5, even(0.038), 120, 119, 200, preempted=0.2, hits=0.66),
)
_EMPTY_RANK = Load(6, 0, 0.12, 300, 300, 0.3, even(0.02), 0.2, e2e=20, wave=2)

CASES: dict[str, Case] = {
    "cap2": Case(
        "vllm",
        (Load(2, 46, 0.02, 33, 80, 0.165, even(0.06), 280, 279.8, 292, 500, free=0.1),),
        "MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#19",
        "33 tokens/s with 2 sequences, 267 with 48 (queue 0.01, TTFT 1.6 s), the KV cache holds 45"
        " requests of 32k tokens",
        "a low --max-num-seqs, which looks like a saturated GPU: reporter, measured by the"
        " maintainer of blazux/qwen3.8-Flash-DGX#1; open",
        rules("sequence_cap"),
    ),
    "capacity": Case(
        "vllm",
        (Load(2, 1, 0.93, 60, 1500, 0.02, even(0.033), 60, 50, 160, 250_000, 3000),),
        "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#43",
        "--max-num-seqs 4; running 2, waiting 1 (reason capacity), KV cache for 1.53 requests of"
        " full length",
        "the KV cache, not the sequence limit: reporter, confirmed by the maintainer (#122)",
        rules("kv_bound"),
    ),
    "mtp": Case(
        "vllm",
        (Load(3, 0, 0.361, 93.9, 1436, 0.4, ((0.031, 0.97), (0.09, 0.03)), 0.9, 0, 8, 3600, 235,
              hits=0.274, drafted=365, accepted=2.5),),
        "vllm-project/vllm#41789",
        "running 3, waiting 0, KV cache 36.1 %, 93.9 tokens/s, prompts 1436/s, drafted 365/s,"
        " accepted 2.5/s (0.7 %)",
        "the draft model is rejected: reporter's metrics; why it is rejected is open",
        rules("speculation_rejected"),
    ),
    "ranks": Case(
        "sglang",
        (Load(0), Load(0),
         Load(1, 11, 0.1, 40, 400, 0.1, even(0.025), 110, 109, 120, 4000, 400, forward=0.9),
         Load(0)),
        "radixark/miles#2012",
        "4 data-parallel ranks: 0+0, 0+0, 1+11 and 0+0 running and queued; 2194 of 2232 failed"
        " episodes are timeouts",
        "the router balances engines, not ranks: author of the merged change",
        rules("imbalance"),
    ),
    "starved": Case(
        "sglang",
        (Load(250, 20, 0.35, 31, 27000, 0.15, ((0.001, 0.66), (24, 0.34)), 40, 8, 1700, 4500, 210,
              forward=0.98),),
        "sgl-project/sglang#32549",
        "250 streams, one decode batch in 24 s, 360 requests a minute of 3 to 6k tokens, KV cache"
        " low",
        "prefill always goes first: reporter; same cause in pull request 34058; open",
        rules("prefill_stalls_decode"),
        rules("slow_tokens"),
    ),
    "zero": Case(
        "vllm",
        (Load(0, 6),),
        "vllm-project/vllm#45414",
        "running 0, waiting 5 to 6, KV cache 0.0 %, 0 tokens/s for more than 9 minutes",
        "the scheduler rounds a small prefill to zero blocks: a contributor, reproduced without a"
        " model; open",
        rules("stands_still"),
    ),
    "retracted": Case(
        "sglang",
        (Load(6, 1, 0.92, 30, 100, 0.01, ((0.001, 0.9), (8, 0.1)), 8, 2, 900, 400_000, 4000,
              preempted=0.05, forward=0.98),),
        "sgl-project/sglang#26248",
        "running 6, KV cache 92 %, 20 to 38 tokens/s after 429, steps of 5 to 11 s",
        "retraction at a full KV cache: reporter; closed without an answer, not certain",
        rules("kv_bound slow_tokens"),
    ),
    "timeouts": Case(
        "vllm before V1",
        (Load(32, 0, 0.385, 73, 0.5, 0, even(0.44), 20, 0, 600, 600, 1300, aborted=0.0533),),
        "tenstorrent/tt-inference-server#350",
        "running 32, waiting 0, KV cache 38.5 %, 73 tokens/s; 32 aborts at exactly 10 minutes",
        "the client gives up after 600 s, the server is too slow for it: reporter; closed",
        rules("requests_fail"),
        rules("slow_tokens"),
    ),
    "eager": Case(
        "sglang",
        (Load(67, 0, 0.01, 6000, 7000, 30, even(0.011), 0.06, 0, 2.3, 230, 200, wave=20,
              forward=0.35, host=0.63),),
        "sgl-project/sglang#33483",
        "0.5B model on an L40, 32 requests/s: running 67 (95 % below 96), queue 0, four times the"
        " time for each token; with graphs 23",
        "decoding without CUDA graphs, bound by launches: reporter, with controls; open",
        rules("host_bound"),
    ),
    "prefix": Case(
        "vllm",
        (Load(1, 0, 0.31, 4, 1560, 0.078, even(0.05), 12.9, 0, 15.4, 20_000, 50),),
        "vllm-project/vllm#45238",
        "one client sends the same 20k tokens: 12.8 s at first, 12.9 s the second time, hits 0 %",
        "one checkpoint of the hybrid cache, in tokens of the request: reporters; open",
        rules("prefix_reuse_missed"),
        rules("prefill_bound"),  # a page does not tell whether prompts share their text
    ),
    "client100": Case(
        "vllm before V1",
        (Load(99.6, 0, 0.34, 2400, 5000, 10, even(0.041), 0.3, 0, 10, 500, 240, wave=0.6),),
        "vllm-project/vllm#14513",
        "200 users, at most 100 requests run, none waits",
        "the client's pool of connections: suspected by a maintainer; not certain",
        rules("underloaded_healthy at_limit_healthy"),
    ),
    "lora": Case(
        "vllm before V1",
        (Load(1, 3, 0.031, 45.7, 60, 0.2, even(0.0219), 9, 8.8, 13, 300),),
        "vllm-project/vllm#11517",
        "running 1, pending 3, KV cache 3.1 %, 45.7 tokens/s, --enable-lora",
        "one LoRA slot: the thread",
        more=('vllm:lora_requests_info{max_lora="1",running_lora_adapters="a",'
              'waiting_lora_adapters="b"}',),
    ),
    "stuck35": Case(
        "vllm before V1",
        (Load(35, 115, 0.99),),
        "vllm-project/vllm#2731",
        "running 35, pending 115, KV cache 99 %, no token",
        "the engine stands still: reporter",
        rules("stands_still"),
    ),
    "stuck2": Case(
        "vllm",
        (Load(2, 0, 0.05),),
        "vllm-project/vllm#40926",
        "running 2, waiting 0, no token, GPU 96 %",
        "a livelock: reporter, by py-spy",
        rules("stands_still"),
    ),
    "crawl": Case(
        "vllm before V1",
        (Load(2, 0, 0.006, 0.4, 0, 0.005, even(5.0), 6, 0, 400, 100, 80),),
        "vllm-project/vllm#15018",
        "running 2, KV cache 0.6 %, 0.4 tokens/s",
        "five seconds for a token: reporter",
        rules("slow_tokens"),
    ),
    "dp8": Case(
        "vllm",
        (*_FULL_RANKS, *[_EMPTY_RANK] * 6),
        "vllm-project/vllm#36748",
        "8 engines: 51 and 31 run, 117 and 108 wait, KV cache 100 and 98.6 %; the others nearly"
        " idle",
        "requests are not spread evenly: reporter",
        rules("imbalance"),
        rules("kv_bound"),
    ),
    "small": Case(
        "vllm before V1",
        (Load(233, 740, 0.997, 2136, 1500, 7, even(0.11), 100, 99, 140, 200, 300, preempted=0.5,
              wave=14),),
        "vllm-project/vllm#6737",
        "0.5B model on an H800: 219 to 247 run, 740 wait, KV cache 99.7 %, 2136 tokens/s, GPU 20 %",
        "host-bound at a full KV cache: the thread",
        rules("host_bound"),
        rules("kv_bound"),
    ),
    "eagle": Case(
        "sglang",
        (Load(32, 68, 0.01, 700, 900, 7, even(0.046), 8, 7.8, 12, 129, 100, free=0.5, drafted=826,
              accepted=424, forward=0.97),),
        "sgl-project/sglang#4759",
        "running 32, queue 68, KV cache 1 %, accepted length 2.54",
        "EAGLE sets --max-running-requests 32: sglang#4286 and a review in #3986",
        rules("sequence_cap"),
        seats=32,
    ),
    "grammar": Case(
        "tgi",
        (Load(2, 20, 0, 40, 240, 0.12, (), 161, 161, 175, 2000, 330),),
        "huggingface/text-generation-inference#3173",
        "queue_time 161 s with a grammar, milliseconds without; 1 or 2 run",
        "grammars are compiled before the queue: reporter; #3303 agrees",
        half=rules("queue_before_engine"),
    ),
    "leak": Case(
        "vllm",
        (Load(0, 0, 0.98),),
        "vllm-project/vllm#27073",
        "running 0, waiting 0, KV cache near 100 % for hours",
        "blocks are never given back: reporter",
        rules("kv_leak"),
    ),
    "busy": Case(
        "vllm",
        (Load(64, 0, 0.55, 2600, 9000, 11, ((0.022, 0.97), (0.045, 0.03)), 0.12, 0.003, 6, 820,
              236, hits=0.35, wave=9),),
    ),
    "light": Case(
        "vllm",
        (Load(0.3, 0, 0.01, 20, 90, 0.15, even(0.015), 0.06, 0, 2, 600, 133, hits=0.2),),
    ),
    "one-user": Case(
        "sglang",
        (Load(1, 0, 0.01, 95, 300, 0.4, even(0.0105), 0.08, 0, 2.5, 750, 238, forward=0.98),),
        seats=64,
    ),
    "moderate": Case(
        "tgi",
        (Load(12, 0, 0, 480, 1600, 2, (), 0.1, 0.01, 6, 800, 240, wave=3),),
    ),
    "bursty": Case(
        "vllm",
        (Load(24, 0, 0.3, 1100, 3000, 5.5, even(0.021), 0.15, 0.004, 4.4, 545, 200, wave=4,
              bursts=(6.0, 6.0)),),
    ),
    "kv85": Case(
        "vllm",
        (Load(40, 0, 0.85, 1500, 4000, 1.3, even(0.026), 0.4, 0.002, 31, 3000, 1150, hits=0.3,
              wave=2),),
    ),
}  # fmt: skip
"""Eleven reports, nine that were rebuilt before, and six healthy servers."""
