"""Does the load generator measure right, and at what cost?

    python -m benchmarks.loadgen [--duration 10] [--peer-python PYTHON] [--keep]

The server is the tests' scripted one, in a process of its own: first token after 200 ms, then one every 20 ms, sent one by one or four at a
time. Errors are our percentiles less the script's. Then many streams at once: CPU time of the client per 1 000 streamed tokens.
`--peer-python`: a Python that has vLLM, whose `vllm bench serve` then runs beside ours. Exit code 1: a median is off by more than 2 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.headless import session
from benchmarks.machine import keep
from gpuconsole.model.run import Run
from tests.fakes.model_server import ITL_S, TTFT_S

OUTPUT = 64
WITHIN_S = 0.002
TRUTH = {"ttft_s": TTFT_S, "itl_s": ITL_S, "tpot_s": ITL_S, "e2e_s": TTFT_S + (OUTPUT - 1) * ITL_S}
STREAMS = 64
LOAD = ("--set", f"output_tokens={OUTPUT}", "--set", "length_spread=0")


@contextmanager
def scripted_server() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-m", "tests.fakes.model_server"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.kill()
        process.wait()


def ours(url: str, duration_s: float, concurrency: int) -> Run:
    return session("serve-chat", duration_s, "--url", url, "--set", f"concurrency={concurrency}", *LOAD).runs[0]


def errors(run: Run) -> dict[str, dict[str, float]]:
    """Our p50 and p99 less the script's, in seconds."""
    found = {}
    for name, truth in TRUTH.items():
        measured = getattr(run.summary, name)
        found[name] = {"truth": truth, "p50": measured.p50 - truth, "p99": measured.p99 - truth}
    return found


def cpu_per_1000_tokens(run: Run) -> float:
    """CPU seconds of the load generator per 1 000 streamed tokens."""
    assert run.summary.tokens_per_s is not None
    return run.signals["client.cpu_ratio"].value / run.summary.tokens_per_s.mean * 1000


def vllm_bench(python: Path, url: str, concurrency: int, prompts: int) -> tuple[dict[str, float], float]:
    """`vllm bench serve`'s figures in ms, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--base-url", url, "--endpoint", "/v1/completions"]
        command += ["--model", "scripted", "--skip-tokenizer-init", "--dataset-name", "random", "--random-input-len", "10"]
        command += ["--random-output-len", str(OUTPUT), "--max-concurrency", str(concurrency), "--num-prompts", str(prompts)]
        command += ["--save-result", "--result-dir", folder, "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "VLLM_NO_USAGE_STATS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        (result,) = Path(folder).glob("*.json")
        figures = json.loads(result.read_text())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {name: figures[name] for name in figures if name.endswith("_ms")}, cpu


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=10, metavar="S")
    parser.add_argument("--peer-python", type=Path, metavar="PYTHON")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/loadgen-DATE.json")
    args = parser.parse_args(argv)
    report: dict[str, object] = {}
    wrong = False
    with scripted_server() as url:
        for behaviour, words in (("steady", "one token a chunk"), ("four", "four tokens a chunk")):
            run = ours(f"{url}/{behaviour}", args.duration, 8)
            found = errors(run)
            report[behaviour] = found
            wrong = wrong or any(abs(found[name]["p50"]) > WITHIN_S for name in found)
            print(f"{words}, 8 users, {run.summary.requests} requests")
            for name, figures in found.items():
                print(
                    f"  {name:8} truth {figures['truth'] * 1e3:7.1f} ms   p50 {figures['p50'] * 1e3:+6.2f} ms   p99 {figures['p99'] * 1e3:+6.2f} ms"
                )
            if args.peer_python:
                theirs, _ = vllm_bench(args.peer_python, f"{url}/{behaviour}", 8, 48)
                report[f"{behaviour} vllm bench"] = theirs
                print(
                    "  vllm bench: "
                    + "  ".join(f"{name} {value:.1f}" for name, value in theirs.items() if "median" in name or "p99" in name)
                )
        busy = ours(f"{url}/steady", args.duration, STREAMS)
        assert busy.summary.tokens_per_s is not None
        report["cpu_s_per_1000_tokens"] = cpu_per_1000_tokens(busy)
        print(f"{STREAMS} streams: {busy.summary.tokens_per_s.mean:.0f} tokens/s, {cpu_per_1000_tokens(busy):.3f} CPU-s per 1 000 tokens")
        if args.peer_python:
            _, few = vllm_bench(args.peer_python, f"{url}/steady", STREAMS, STREAMS)
            _, many = vllm_bench(args.peer_python, f"{url}/steady", STREAMS, 5 * STREAMS)
            report["vllm bench cpu_s_per_1000_tokens"] = per = (many - few) / (4 * STREAMS * OUTPUT) * 1000
            print(f"  vllm bench: {per:.3f} CPU-s per 1 000 tokens, its start taken off")
    if args.keep:
        keep("loadgen", report)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
