"""Is the cause of a public report of a slow or broken model server named by `gpuconsole watch URL`?

    python -m benchmarks.serving_reports [--only NAME ...] [--duration 40] [--parallel 4] [--keep]
        [--outputs FOLDER]

Each case (`serving_report_cases.py`) is a metrics page in the words of an engine. The real command
line watches each page, one process each, and the findings of its snapshot are compared with the
cause:

- right: the finding on top is one of `accept`; where `accept` is empty, the page cannot show the
  cause, and right is to have no conclusion and to name what is missing;
- partly: the finding on top names half of the cause (`half`), or a right one stands below it;
- can't tell: no conclusion, and the missing signal is named;
- false clean bill: the verdict begins with Healthy, or no fault is found;
- wrong: anything else.

The healthy pages are right if no finding accuses anything. Exit code 1: not all cases are right.
"""

from __future__ import annotations

import argparse
import collections
import http.server
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from benchmarks.machine import keep
from benchmarks.serving_report_cases import CASES, Case, Load

LIMIT_S = 90.0
"""A command that takes so long beyond its duration is killed."""
AGE_S = 1000.0
"""The servers have run for so long when their pages are read first."""
SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
GAPS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Names(NamedTuple):
    """The metrics of one engine, each with the value of `values` that it shows. `labels`: of all;
    `{i}` is the number of the engine or of the rank."""

    prefix: str
    labels: str
    gauges: Mapping[str, str]
    totals: Mapping[str, str]
    times: Mapping[str, str]


VLLM = Names(
    "vllm:",
    'engine="{i}",model_name="m"',
    {
        "num_requests_running": "running",
        "num_requests_waiting": "waiting",
        "kv_cache_usage_perc": "kv",
        'num_requests_waiting_by_reason{reason="capacity"}': "capacity",
        'num_requests_waiting_by_reason{reason="deferred"}': "deferred",
        'cache_config_info{block_size="16",gpu_memory_utilization="0.9"}': "one",
    },
    {
        "num_preemptions_total": "preempted",
        "prompt_tokens_total": "prompt",
        "generation_tokens_total": "tokens",
        "prefix_cache_queries_total": "prompt",
        "prefix_cache_hits_total": "found",
        'request_success_total{finished_reason="stop"}': "ended",
        'request_success_total{finished_reason="abort"}': "aborted",
        "spec_decode_num_draft_tokens_total": "drafted",
        "spec_decode_num_accepted_tokens_total": "accepted",
    },
    {
        "time_to_first_token_seconds": "ttft",
        "inter_token_latency_seconds": "gaps",
        "e2e_request_latency_seconds": "e2e",
        "request_queue_time_seconds": "queue",
        "request_prefill_time_seconds": "prefill",
        "request_decode_time_seconds": "decode",
        "iteration_tokens_total": "iteration",
        "request_prompt_tokens": "prompt_length",
        "request_generation_tokens": "output_length",
    },
)
"""vllm/v1/metrics/loggers.py from 0.20 on."""
OLD = {"kv_cache": "gpu_cache", "inter_token_latency": "time_per_output_token"}


def as_before_v1(names: Mapping[str, str]) -> dict[str, str]:
    """The metrics of vLLM 0.4 to 0.7, by their old names."""
    left_out = ("prefix_", "spec_", "num_requests_waiting_by", "cache_config")
    found = {name: value for name, value in names.items() if not name.startswith(left_out)}
    for new, old in OLD.items():
        found = {name.replace(new, old): value for name, value in found.items()}
    return found


ENGINES = {
    "vllm": VLLM,
    "vllm before V1": Names("vllm:", 'model_name="m"', *(as_before_v1(part) for part in VLLM[2:])),
    # sglang/srt/observability/metrics_collector.py of 0.5.23
    "sglang": Names(
        "sglang:",
        'model_name="m",engine_type="unified",tp_rank="0",pp_rank="0",dp_rank="{i}"',
        {
            "num_running_reqs": "running",
            "num_queue_reqs": "waiting",
            "num_grammar_queue_reqs": "deferred",
            "token_usage": "kv",
            "spec_accept_length": "accept_length",
            "spec_accept_rate": "accept_ratio",
        },
        {
            'realtime_tokens_total{mode="prefill_compute"}': "computed",
            'realtime_tokens_total{mode="prefill_cache"}': "found",
            'realtime_tokens_total{mode="decode"}': "tokens",
            "num_retracted_requests_total": "preempted",
            "num_requests_total": "ended",
            "num_aborted_requests_total": "aborted",
            "forward_execution_seconds_total": "forward",
            "scheduler_idle_seconds_total": "idle",
        },
        {
            "time_to_first_token_seconds": "ttft",
            "inter_token_latency_seconds": "gaps",
            "e2e_request_latency_seconds": "e2e",
            "queue_time_seconds": "queue",
        },
    ),
    # docs/source/reference/metrics.md of TGI
    "tgi": Names(
        "tgi_",
        "",
        {"batch_current_size": "running", "queue_size": "waiting"},
        {"request_success": "ended", 'request_failure{err="generation"}': "aborted"},
        {
            "request_duration": "e2e",
            "request_queue_duration": "queue",
            "request_input_length": "prompt_length",
            "request_generated_tokens": "output_length",
        },
    ),
}


def values(load: Load, age_s: float, i: int) -> tuple[dict[str, float], float]:
    """The gauges, rates and times of one engine now, and the seconds that it had load."""
    on, off = load.bursts
    rounds, within = divmod(age_s, on + off)
    busy_s = rounds * on + min(within, on)
    # sines without a common period: values that vary and are the same for each reader
    sway = 0.6 * math.sin(0.9 * age_s + i) + 0.4 * math.sin(2.3 * age_s + 2 * i)
    running = round(load.running + load.wave * sway)
    if load.free and (int(age_s * 5) * 0.6180339887) % 1.0 < load.free:
        running -= 1  # a request has just ended, and the next one has not begun
    if load.running < 1:
        running = int(age_s % 10 < 10 * load.running)
    if within > on:
        running = 0
    deferred = round(load.waiting * load.deferred)
    itl = sum(gap * share for gap, share in load.gaps)
    gauges = {
        "one": 1.0,
        "running": running,
        "waiting": load.waiting,
        "deferred": deferred,
        "capacity": load.waiting - deferred,
        "kv": load.kv * (running / load.running if load.running and not load.waiting else 1.0),
        "accept_ratio": load.accepted / load.drafted if load.drafted else 0.0,
        "accept_length": 1 + 3 * load.accepted / load.drafted if load.drafted else 0.0,
    }
    rates = {
        "found": load.prompt * load.hits,
        "computed": load.prompt * (1 - load.hits),
        "idle": max(0.0, 1 - load.forward - load.host),
        "decode": max(0.0, load.e2e - load.ttft),
        "prefill": max(0.0, load.ttft - load.queue),
        "steps": 1 / itl if itl else 0.0,
    }
    rates["iteration"] = (load.tokens + rates["computed"]) * itl
    return {**load._asdict(), **gauges, **rates}, busy_s


def page(case: Case, age_s: float) -> str:
    names, rows = ENGINES[case.engine], []
    for i, load in enumerate(case.loads):
        now, busy_s = values(load, age_s, i)

        def row(name: str, value: float, i: int = i, **more: object) -> str:
            name, _, own = name.partition("{")
            labels = [names.labels.format(i=i), own.rstrip("}")]
            inside = ",".join(
                [part for part in labels if part] + [f'{k}="{v}"' for k, v in more.items()]
            )
            return f"{names.prefix}{name}{{{inside}}} {value:.10g}"

        rows += [row(name, now[value]) for name, value in names.gauges.items()]
        rows += [
            row(name, int(now[value] * busy_s * 100) / 100) for name, value in names.totals.items()
        ]
        for name, value in names.times.items():
            rate = {"gaps": load.tokens, "iteration": now["steps"]}.get(value, load.ended)
            spread = load.gaps if value == "gaps" else ((now[value], 0.8), (now[value] * 1.3, 0.2))
            counts = [(at, int(rate * busy_s * share)) for at, share in spread]
            bounds = GAPS if value == "gaps" else TOKENS if "tokens" in name else SECONDS
            for bound in (*bounds, math.inf):
                within = sum(count for at, count in counts if at <= bound)
                rows.append(
                    row(f"{name}_bucket", within, le="+Inf" if bound == math.inf else bound)
                )
            rows.append(row(f"{name}_count", sum(count for _, count in counts)))
            rows.append(row(f"{name}_sum", sum(at * count for at, count in counts)))
    rows += [f"{line} 1" for line in case.more]
    return "\n".join([*rows, f"process_start_time_seconds {time.time() - age_s:.1f}", ""])


def answer(case: Case, asked: str, shown_s: float) -> str | None:
    """What the server of a case answers at a path and query; None: not found. vLLM's page takes the
    names of the metrics that are wanted."""
    path, _, query = asked.partition("?")
    if path.rstrip("/") == "metrics":
        text, wanted = page(case, AGE_S + shown_s), parse_qs(query).get("name[]")
        if not wanted:
            return text
        rows = [row for row in text.splitlines() if row.partition("{")[0] in wanted]
        return "\n".join([*rows, ""]) if case.engine.startswith("vllm") else None
    if path == "server_info" and case.seats:
        return json.dumps({"max_running_requests": case.seats, "max_total_num_tokens": 400_000})
    return None


@contextmanager
def served() -> Iterator[tuple[str, list[str]]]:
    """The address of all pages (`/NAME/metrics`), and the requests to them other than GET: there
    should be none."""
    begun, others = time.monotonic(), list[str]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, _, path = self.path[1:].partition("/")
            body = answer(CASES[name], path, time.monotonic() - begun) if name in CASES else None
            with suppress(ConnectionError):  # the watch has ended
                self.send_response(200 if body else 404)
                self.end_headers()
                self.wfile.write((body or "").encode())

        def do_POST(self) -> None:
            others.append(self.path)
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", others
    finally:
        server.shutdown()


class Row(NamedTuple):
    """`top` and `title`: of the finding that stands first; empty where none fires. `others`: the
    rules below it. `said`: what the terminal says in place of findings."""

    name: str
    expected: str
    outcome: str
    top: str = ""
    title: str = ""
    others: tuple[str, ...] = ()
    said: str = ""

    def text(self) -> str:
        words = self.title or self.said[:70]
        return f"{self.name:<16} {self.expected:<34} {self.outcome:<16} {self.top:<29} {words}"


def watched(url: str, name: str, duration_s: float, outputs: Path) -> Row:
    """Run the command on the page of one case."""
    case, snapshot = CASES[name], outputs / f"{name}.json"
    command = [sys.executable, "-m", "gpuconsole", "watch", f"{url}/{name}", "--headless"]
    command += ["--duration", f"{duration_s:g}", "--snapshot", str(snapshot), "--quiet"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=duration_s + LIMIT_S, check=False
    )
    (outputs / f"{name}.txt").write_text(done.stdout + done.stderr)
    if not snapshot.exists():
        return Row(name, case.expected, "not run", said=done.stderr.strip()[-70:])
    run = json.loads(snapshot.read_text())["runs"][-1]
    fires = [finding for finding in run["findings"] if finding["state"] == "fires"]
    spoken = [line.strip() for line in done.stdout.splitlines() if "diagnosis: " in line]
    said = spoken[0].removeprefix("diagnosis: ") if spoken else ""
    top, title = (fires[0]["rule"], fires[0]["title"]) if fires else ("", "")
    others = tuple(finding["rule"] for finding in fires[1:])
    return Row(name, case.expected, outcome(case, fires, said), top, title, others, said)


def outcome(case: Case, fires: list[dict[str, Any]], said: str) -> str:
    """One word for what the command concluded. `said`: what stands in place of findings."""
    # the name without the family: a renamed family needs no change here
    rules = [finding["rule"].rpartition(".")[2] for finding in fires]
    if case.healthy:
        return "accused" if any(not finding.get("note") for finding in fires) else "right"
    if rules and rules[0] in case.accept:
        return "right"
    if not rules and said.startswith("no conclusion"):
        return "can't tell" if case.accept else "right"
    if not rules or fires[0]["title"].startswith("Healthy"):
        return "false clean bill"
    return "partly" if rules[0] in case.half or case.accept.intersection(rules) else "wrong"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help="of cases")
    parser.add_argument("--duration", type=float, default=40.0, help="seconds of each command")
    parser.add_argument("--parallel", type=int, default=4, help="commands at the same time")
    parser.add_argument("--outputs", type=Path, help="a folder for snapshots and summaries")
    parser.add_argument("--keep", action="store_true", help="write the rows to benchmarks/results")
    args = parser.parse_args()
    rows = []
    print(Row("case", "expected", "outcome", "rule on top", "its title").text(), flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(args.parallel) as pool,
        served() as (url, others),
    ):
        outputs = args.outputs or Path(folder)
        outputs.mkdir(parents=True, exist_ok=True)
        one = lambda name: watched(url, name, args.duration, outputs)  # noqa: E731
        for row in pool.map(one, args.only or CASES):
            rows.append(row)
            print(row.text(), flush=True)
    reports = [row for row in rows if not CASES[row.name].healthy]
    counts = collections.Counter(row.outcome for row in reports)
    accused = [row.name for row in rows if row.outcome == "accused"]
    print(
        f"{len(reports)} reports: {', '.join(f'{k} {n}' for k, n in counts.most_common())};"
        f" {len(rows) - len(reports)} healthy pages, accused {len(accused)};"
        f" requests other than GET: {len(others)}"
    )
    if args.keep:
        found = {"duration_s": args.duration, "counts": counts, "accused": accused}
        print(keep("serving-reports", {**found, "rows": [row._asdict() for row in rows]}))
    return 0 if all(row.outcome == "right" for row in rows) and not others else 1


if __name__ == "__main__":
    sys.exit(main())
