"""serve.frontend_cpu: the process that takes requests and turns tokens into text limits the server,
not the model."""

from __future__ import annotations

from gpuconsole.diagnosis.families.serving import FRONTEND_BUSY as BUSY
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

FULL = 0.9
LATER = Threshold(
    "later",
    1.2,
    "ratio",
    "the time between tokens is 20 % longer at the client than in the engine (survey I11)",
)


class ServeFrontendCpu(Rule):
    id = "serve.frontend_cpu"
    title = "The API server process is short of CPU"
    clear_title = "The API server process has enough CPU"
    subject = "load"
    thresholds = (BUSY, LATER)
    knobs = ("api_server_count",)
    reads = (
        "server.frontend_processes",
        "server.frontend_cpu_ratio",
        "server.itl_s",
        "client.tpot_s",
    )
    text = """vLLM takes requests, tokenises, turns tokens into text and streams them in a separate
process next to the engine. This is a Python process with one core at most. When the core is fully
used, the engine waits for requests and tokens wait to be sent, and the GPU looks idle without a
reason (vllm#8147: a faster CPU alone gave 3.8x). Measured: the CPU time of that process, for a
server that was started here, and the time between tokens at the client over the time between tokens
in the engine. What helps: --api-server-count, fewer stop strings, no logprobs, a larger
--stream-interval."""

    def judge(self, case: Case) -> Finding:
        if case.get("server.frontend_processes", 1) == 0:
            return self.clear(
                0.0,
                case.evidence("server.frontend_processes"),
                "this server answers from the process of the engine",
            )
        busy = case.value("server.frontend_cpu_ratio")
        made, got = case.value("server.itl_s"), case.value("client.tpot_s")
        later = got / max(1e-9, made)
        evidence = case.evidence(
            ("server.frontend_cpu_ratio", BUSY), "server.itl_s", ("client.tpot_s", made * LATER)
        )
        if busy < BUSY or (busy < FULL and later < LATER):
            return self.clear(min(0.59, busy / BUSY), evidence)
        processes = int(case.setting("api_server_count"))
        summary = (
            f"the API server process uses {percent(busy)} of a core. The engine makes a token every"
            f" {made * 1e3:.1f} ms, the client receives one every {got * 1e3:.1f} ms"
        )
        why = "more processes take requests and turn tokens into text"
        code = (
            f"vllm serve ... --api-server-count {processes * 2}; fewer stop strings and logprobs;"
            " --stream-interval"
        )
        change = case.suggest({"api_server_count": processes * 2}, None, why, code)
        recoverable = max(0.05, 1 - 1 / max(1.0, later))
        confidence = high_if(later >= LATER and busy >= FULL)
        return self.fires(
            busy / BUSY,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=confidence,
            suggestions=[change],
        )
