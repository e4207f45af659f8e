"""serve.host_overhead_eager: the server launches kernel by kernel, and the GPU waits in between."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    Confidence,
    Finding,
    Interval,
    Rule,
    Threshold,
    percent,
)

BUSY = Threshold(
    "busy", 0.75, "ratio", "the GPU runs a kernel for less than 75 % of the time (survey I10)"
)
ROOF = Threshold(
    "roof",
    0.50,
    "ratio",
    (
        "half of the memory bandwidth, or of the peak, is near the practical limit of a server"
        " (tensward; survey I08)"
    ),
)
RUNNING = Threshold(
    "running", 1.0, "requests", "with less than one running request on average the GPU has no work"
)
RUNNING_OPEN = 4.0
"""The same in an open loop, where requests arrive in bursts."""
EAGER = ". Every kernel is launched alone"
EMBEDDED = (
    ". The embedded server launches every kernel alone and has no CUDA graphs: larger layers"
    " (d_model) or vLLM keep the GPU busy"
)
GRAPHS = (
    ". Check async scheduling, the optimisation level (-O), and other work of the engine process"
)


class ServeHostOverheadEager(Rule):
    id = "serve.host_overhead_eager"
    title = "The server's GPU waits for the host"
    clear_title = "The host does not hold back the server's GPU"
    subject = "serving"
    gpu_only = True
    thresholds = (BUSY, ROOF, RUNNING)
    knobs = ("enforce_eager",)
    reads = (
        "is_gpu",
        "server.requests_running",
        "mbu_ratio",
        "mfu_ratio",
        "client.request_rate",
        "hw.busy_ratio",
    )
    text = """A decoding iteration consists of hundreds of small kernels. Launched one by one
(enforce_eager), they take the host longer than the GPU. The GPU is then idle in between: it runs a
kernel for less than 75 % of the time although requests are running, and is far from its memory
bandwidth. CUDA graphs launch all kernels at once. The embedded server has no CUDA graphs, so its
small models are bound by the host. If graphs are already on, scheduling or sampling on the host is
the likely cause. A GPU without requests, or behind an API server process that is short of CPU, is a
different case."""

    def judge(self, case: Case) -> Finding:
        running, roof = (
            case.value("server.requests_running"),
            max(case.value("mbu_ratio"), case.get("mfu_ratio", 0.0)),
        )
        least = RUNNING_OPEN if serving.open_loop(case) else RUNNING
        evidence = case.evidence(("server.requests_running", least), ("mbu_ratio", ROOF))
        if running < least or roof >= ROOF:
            return self.clear(0.0, evidence, "the load is too small, or the GPU is near its limit")
        busy = case.value("hw.busy_ratio")
        evidence += case.evidence(("hw.busy_ratio", BUSY))
        level = (1 - busy) / (1 - BUSY)
        if busy >= BUSY:
            return self.clear(min(level, 0.99), evidence)
        embedded = case.knobs.get("server") == "embedded"
        # a server that was not started here does not report it
        eager = bool(case.knobs.get("enforce_eager", False)) and not embedded
        share = min(MAX_SHARE, 1 - busy)
        cause = EMBEDDED if embedded else EAGER if eager else GRAPHS
        summary = (
            f"with {running:.0f} requests running, the GPU works only {percent(busy)} of the"
            f" time{cause}"
        )
        why = (
            "CUDA graphs launch an iteration at once; the server starts more slowly and uses a"
            " little more memory"
        )
        code = "vllm serve ...   # without --enforce-eager"
        change = (
            case.suggest({"enforce_eager": False}, Interval(1.0, 1 / (1 - share)), why, code)
            if eager
            else None
        )
        confidence: Confidence = "high" if eager or embedded else "low"
        return self.fires(
            level, evidence, summary, recoverable=share, confidence=confidence, suggestions=[change]
        )
