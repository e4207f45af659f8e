"""serve.stands_still: requests are under way, and the server has made no progress for a while."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold
from gpuconsole.session.server_signals import STILL_S, STILL_SGLANG_S, standstill_limit_s

STILL = Threshold(
    "still",
    STILL_S,
    "s",
    (
        "a person gives up after 10 s without a sign (Nielsen 1993), and a prompt of 100 000"
        " tokens at 7 000 tokens/s takes 14 s"
    ),
)
STILL_SGLANG = Threshold(
    "still, SGLang",
    STILL_SGLANG_S,
    "s",
    "SGLang writes its gauges every 30 s while it has nothing to do; the last request seems to run",
)
HUNG = 0.9


class ServeStandsStill(Rule):
    id = "serve.stands_still"
    title = "The server stands still"
    clear_title = "The server makes progress"
    subject = "serving"
    thresholds = (STILL, STILL_SGLANG)
    reads = (
        "server.still_s", "server.still_engines", "server.engines", "server.requests_running",
        "server.requests_waiting",
    )  # fmt: skip
    text = """Requests run or wait, and for 15 s (SGLang: 45 s) no token came, no request ended, no
prompt was read and the use of the KV cache did not change. The engine hangs, or waits for something
that does not come: a collective with a process that is gone, a lock, a connector, a kernel that
does not end. The metrics page may answer all the same, because another process serves it. Look at
the log of the engine, and at the stacks of its processes (py-spy dump --pid PID); a restart ends
it. An engine that does not report the use of its KV cache (TGI, llama.cpp) counts the tokens of a
request at its end, so from outside a long answer and a hang look the same."""

    def judge(self, case: Case) -> Finding:
        still = case.value("server.still_s")
        limit = standstill_limit_s(serving.engine_of(case))
        evidence = case.evidence(("server.still_s", limit))
        evidence += case.if_known(
            "server.still_engines", "server.requests_running", "server.requests_waiting"
        )
        if still < limit:
            return self.clear(min(0.59, still / limit), evidence)
        running, waiting = (
            case.get("server.requests_running", 0.0),
            case.get("server.requests_waiting", 0.0),
        )
        under_way = [
            f"{count:.0f} {word}"
            for count, word in ((running, "run"), (waiting, "wait"))
            if count >= 0.5
        ]
        engines = case.get("server.still_engines", 0.0)
        where = (
            f"in {engines:.0f} of {case.get('server.engines', engines):.0f} engines "
            if engines
            else ""
        )
        summary = (
            f"{where}no token came and no request ended for {still:.0f} s, while requests are under"
            f" way ({' and '.join(under_way)}): the engine hangs. Look at its log and at the stacks"
            " of its processes (py-spy dump); a restart ends it"
        )
        return self.fires(still / limit, evidence, summary, recoverable=HUNG, confidence="high")
