"""serve.host_bound: the host's work between two iterations keeps the server's GPU waiting."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    NOT_ON_GPU,
    Case,
    Confidence,
    Evidence,
    Finding,
    Interval,
    Rule,
    Threshold,
    percent,
)

BUSY = Threshold(
    "busy", 0.75, "ratio", "the GPU runs a kernel for less than 75 % of the time (survey I10)"
)
IDLE = Threshold(
    "idle",
    0.1,
    "of the time",
    "a scheduler that is idle for less than a tenth of the time has no time left",
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
ADVICE = {
    "vllm": (
        ". Check async scheduling, the optimisation level (-O), and other work of the engine"
        " process"
    ),
    "sglang": (
        ". Start the server with CUDA graphs and overlapped scheduling (without"
        " --disable-cuda-graph, --disable-overlap-schedule), and give it cores of its own"
    ),
}


class ServeHostBound(Rule):
    id = "serve.host_bound"
    title = "The host keeps the server's GPU waiting"
    clear_title = "The server's GPU does not wait for the host"
    subject = "serving"
    once = ("serve.host_overhead_eager", "watch.host_bound")
    thresholds = (BUSY, IDLE, ROOF, RUNNING)
    knobs = ("enforce_eager",)
    reads = (
        "is_gpu", "server.requests_running", "mbu_ratio", "mfu_ratio", "client.request_rate",
        "hw.busy_ratio", "server.scheduler_idle_ratio", "server.forward_ratio",
    )  # fmt: skip
    text = """Between two iterations the scheduler picks requests, prepares their inputs and sends
their tokens, on one core, and a decoding iteration consists of hundreds of small kernels. Launched
one by one (enforce_eager), they take the host longer than the GPU. The GPU is then idle in between,
although requests run. Two sources tell: SGLang (from 0.5.23 on) reports how long its scheduler is
idle and how long the GPU is in forward passes; where the GPU is on this machine, its driver reports
how long it runs a kernel, and the server's counters how far it is from its memory bandwidth. CUDA
graphs launch all kernels at once; overlapped scheduling, more processes for tokenization, and a
core that no other program uses help too. The embedded server has no CUDA graphs, so its small
models are bound by the host. A GPU without requests, or behind an API server process that is short
of CPU, is a different case."""

    def judge(self, case: Case) -> Finding:
        of_page = case.has("server.scheduler_idle_ratio", "server.forward_ratio")
        if not of_page and case.has("is_gpu") and not case.on_gpu:
            return self.clear(summary=NOT_ON_GPU)
        running = case.value("server.requests_running")
        evidence = case.evidence(("server.requests_running", _least(case)))
        if of_page:
            idle, busy = (
                case.value("server.scheduler_idle_ratio"),
                case.value("server.forward_ratio"),
            )
            evidence += case.evidence(
                ("server.scheduler_idle_ratio", IDLE), ("server.forward_ratio", BUSY)
            )
            at_work = idle < IDLE
            words = (
                f"the scheduler is idle for {percent(idle)} of the time and the GPU computes for"
                f" {percent(busy)}"
            )
        elif not case.has("is_gpu"):
            return self.cant_tell(
                serving.lacks(case, "server.scheduler_idle_ratio"),
                ("server.scheduler_idle_ratio",),
            )
        else:
            roof = max(case.value("mbu_ratio"), case.get("mfu_ratio", 0.0))
            evidence += case.evidence(("mbu_ratio", ROOF))
            if roof >= ROOF:
                return self.clear(0.0, evidence, "the GPU is near its limit")
            busy, at_work = case.value("hw.busy_ratio"), True
            evidence += case.evidence(("hw.busy_ratio", BUSY))
            words = (
                f"with {running:.0f} requests running, the GPU works only {percent(busy)} of the"
                " time"
            )
        level = (1 - busy) / (1 - BUSY)
        if running < _least(case) or busy >= BUSY or not at_work:
            return self.clear(min(0.59, level), evidence)
        return self._found(case, level, evidence, words, 1 - busy)

    def _found(
        self, case: Case, level: float, evidence: tuple[Evidence, ...], words: str, idle: float
    ) -> Finding:
        embedded = serving.engine_of(case) == "embedded"
        # a server that was not started here does not report it
        eager = bool(case.knobs.get("enforce_eager", False)) and not embedded
        share = min(MAX_SHARE, idle)
        cause = (
            EMBEDDED if embedded else EAGER if eager else ADVICE.get(serving.engine_of(case), "")
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
        of_page = case.has("server.scheduler_idle_ratio")
        confidence: Confidence = "high" if eager or embedded else "medium" if of_page else "low"
        return self.fires(
            level,
            evidence,
            f"{words}{cause}",
            recoverable=share,
            confidence=confidence,
            suggestions=[change],
        )


def _least(case: Case) -> float:
    open_loop = case.get("client.request_rate", 0.0) > 0
    return RUNNING_OPEN if open_loop else RUNNING
