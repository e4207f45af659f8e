"""Does the load generator measure correctly, and how much CPU does it use?

    python -m benchmarks.loadgen [--duration 10] [--vllm-python PYTHON --tokenizer FOLDER]
        [--aiperf PROGRAM] [--keep]
    python -m benchmarks.loadgen --server URL --model NAME --tokenizer FOLDER [--vllm-python PYTHON]
        [--aiperf PROGRAM] [--keep]

The server is the scripted server of the tests, in a separate process: first token after 200 ms,
then a token every 20 ms, sent one by one or in groups of four. Errors are our percentiles minus the
script's, and minus the server's own delay (1 to 2 ms: event loops wake late). Then come many
streams at once: CPU time of each client per 1 000 streamed tokens. With `--server`, other clients
put the same load on a real server, alternating with ours. Exit code 1: a median differs from the
script by more than 2 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.headless import session
from benchmarks.loadgen.cost import streaming_cost
from benchmarks.loadgen.peers import (
    FIGURES,
    VLLM_ENV,
    Load,
    Told,
    aiperf,
    aiperf_command,
    vllm_bench,
    vllm_bench_command,
)
from benchmarks.machine import keep
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.workloads.serving.load.traffic import Prompts
from gpuconsole.workloads.serving.scraping import read_families, server_state
from tests.fakes.model_server import ITL_S, TTFT_S

OUTPUT = 64
WITHIN_S = 0.002
TRUTH = {"ttft_s": TTFT_S, "itl_s": ITL_S, "tpot_s": ITL_S, "e2e_s": TTFT_S + (OUTPUT - 1) * ITL_S}
FEW_USERS = 2
"""Users on the scripted server. More users would send at the same time and wait for each other in
the server, which the script does not include."""
STREAMS, MANY = 64, 4000
USERS, REQUESTS = 8, 240
PROMPT = 64
NAMES = ("ttft_s", "tpot_s", "itl_s", "chunk_gap_s", "e2e_s")
LOAD = ("--set", f"output_tokens={OUTPUT}", "--set", "length_spread=0")


@contextmanager
def scripted_server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.model_server"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.kill()
        process.wait()


def ours(url: str, duration_s: float, concurrency: int) -> Run:
    return session(
        "serve-chat", duration_s, "--url", url, "--set", f"concurrency={concurrency}", *LOAD
    ).runs[0]


def errors(run: Run, url: str) -> dict[str, dict[str, float]]:
    """Our p50 and p99 minus the script's, in seconds, without the delay that the server reports
    about itself."""
    with urllib.request.urlopen(f"{url}/lateness", timeout=10) as answer:
        late = json.load(answer)
    late_by = {"ttft_s": late["first"], "e2e_s": late["last"]}
    found = {}
    for name, script in TRUTH.items():
        measured, truth = getattr(run.summary, name), script + late_by.get(name, 0.0)
        found[name] = {"truth": truth, "p50": measured.p50 - truth, "p99": measured.p99 - truth}
    return found


def by_us(load: Load, duration_s: float) -> Told:
    words = {
        "concurrency": load.concurrency,
        "output_tokens": load.output_tokens,
        "length_spread": 0,
    }
    sets = [word for name, value in words.items() for word in ("--set", f"{name}={value}")]
    run = session(
        "serve-chat", duration_s, "--url", load.url, "--prompts", load.prompts, *sets
    ).runs[0]
    latencies = {}
    for name in NAMES:
        found = getattr(run.summary, name)
        latencies[name] = {figure: getattr(found, figure) for figure in FIGURES}
    assert run.summary.tokens_per_s is not None
    return Told(
        latencies,
        run.summary.tokens_per_s.mean,
        run.signals["client.cpu_ratio"].value * run.duration_s,
    )


def write_prompts(folder: str, count: int) -> str:
    """Write the same prompts for every client, each under the names that the client expects;
    returns the file."""
    prompts = Prompts(1, characters_per_token=1)
    knobs: Knobs = {
        "prompt_tokens": PROMPT,
        "output_tokens": OUTPUT,
        "length_spread": 0.0,
        "shared_prefix_ratio": 0.0,
    }
    path = Path(folder) / "prompts.jsonl"
    texts = [prompts.next(knobs)[0] for _ in range(count)]
    path.write_text("".join(json.dumps({"prompt": text, "text": text}) + "\n" for text in texts))
    return str(path)


def server_means(url: str) -> Callable[[], dict[str, float]]:
    """The server's own mean TTFT, ITL and E2E from now until the result is called, from its
    counters."""

    def totals() -> dict[str, float]:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            return server_state(read_families(answer.read().decode()), 0.0).totals

    before = totals()

    def means() -> dict[str, float]:
        after = totals()
        gained = {name: value - before.get(name, 0.0) for name, value in after.items()}
        counts = {name: gained.get(f"{name}_count", 0.0) for name in ("ttft_s", "itl_s", "e2e_s")}
        return {
            f"server's {name} mean": gained[f"{name}_sum"] / count
            for name, count in counts.items()
            if count
        }

    return means


def cross_check(
    load: Load, clients: dict[str, Callable[[], Told]], rounds: int
) -> dict[str, object]:
    """All clients in turn, round after round; medians over the rounds, next to the server's own
    figures for the requests of that client. If the server's figures differ between clients, the
    clients sent different loads.
    """
    told: dict[str, list[Told]] = {name: [] for name in clients}
    own: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
    for number in range(rounds):
        for name, measure in clients.items():
            means = server_means(load.url)
            told[name].append(measure())
            own[name].append(means())
            print(
                f"round {number + 1}: {name} {told[name][-1].tokens_per_s:.0f} tokens/s", flush=True
            )
    return {name: _medians(results, own[name]) for name, results in told.items()} | {
        f"gpuconsole over {name}": _ratios(told["gpuconsole"], results)
        for name, results in told.items()
        if name != "gpuconsole"
    }


def _medians(results: list[Told], own: list[dict[str, float]]) -> dict[str, float]:
    """Medians over a client's rounds; printed too."""
    found = {"tokens_per_s": statistics.median(one.tokens_per_s or 0.0 for one in results)}
    for latency, figures in results[0].latencies.items():
        found |= {
            f"{latency} {figure}": statistics.median(
                one.latencies[latency][figure] for one in results
            )
            for figure in figures
        }
    found |= {figure: statistics.median(one[figure] for one in own) for figure in own[0]}
    for name, of_server in (("e2e_s", "e2e_s"), ("tpot_s", "itl_s")):
        if f"server's {of_server} mean" in own[0]:
            found[f"{name} mean over the server's own"] = statistics.median(
                one.latencies[name]["mean"] / other[f"server's {of_server} mean"]
                for one, other in zip(results, own, strict=True)
            )
    print(
        "  ".join(
            f"{key} {value:.3f}"
            if "over" in key
            else f"{key} {value * 1e3:.1f} ms"
            if "_s " in key
            else f"{key} {value:.0f}"
            for key, value in found.items()
        )
    )
    return found


def _ratios(ours: list[Told], theirs: list[Told]) -> dict[str, list[float]]:
    """Our figure over theirs in the same round, because the machine's speed changes: median, lowest
    and highest; printed too."""
    found: dict[str, list[float]] = {}
    pairs = list(zip(ours, theirs, strict=True))
    values = {
        "tokens_per_s": [
            (one.tokens_per_s or 0.0) / (other.tokens_per_s or 1.0) for one, other in pairs
        ]
    }
    for latency, figures in theirs[0].latencies.items():
        for figure in figures:
            values[f"{latency} {figure}"] = [
                one.latencies[latency][figure] / other.latencies[latency][figure]
                for one, other in pairs
                if other.latencies[latency][figure]
            ]
    for name, ratios in values.items():
        if ratios:
            found[name] = [statistics.median(ratios), min(ratios), max(ratios)]
            print(f"  {name:18} {found[name][0]:.3f}  [{found[name][1]:.3f}, {found[name][2]:.3f}]")
    return found


def against_script(url: str, duration_s: float, report: dict[str, object]) -> bool:
    """Whether a median differs by more than the limit."""
    wrong = False
    for behaviour, words in (("steady", "one token a chunk"), ("four", "four tokens a chunk")):
        run = ours(f"{url}/{behaviour}", duration_s, FEW_USERS)
        report[behaviour] = found = errors(run, url)
        wrong = wrong or any(abs(figures["p50"]) > WITHIN_S for figures in found.values())
        print(f"{words}, {FEW_USERS} users, {run.summary.requests} requests")
        for name, figures in found.items():
            print(
                f"  {name:8} truth {figures['truth'] * 1e3:7.1f} ms   p50"
                f" {figures['p50'] * 1e3:+6.2f} ms   p99 {figures['p99'] * 1e3:+6.2f} ms"
            )
    return wrong


def costs(url: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """CPU seconds per 1 000 streamed tokens of every client, in turn, round after round: median,
    lowest and highest."""
    with tempfile.TemporaryDirectory() as folder:
        load = Load(
            f"{url}/steady",
            "scripted",
            args.tokenizer or "",
            STREAMS,
            MANY,
            write_prompts(folder, MANY),
            OUTPUT,
        )
        mine = [
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            "serve-chat",
            "--headless",
            "--duration",
            "60",
            "--url",
            load.url,
        ]
        mine += ["--prompts", load.prompts, "--set", f"concurrency={STREAMS}", *LOAD]
        clients: dict[str, tuple[list[str], dict[str, str], str]] = {
            "gpuconsole's load generator": (mine, {}, "load.generator"),
            "gpuconsole, all of it": (mine, {}, ""),
        }
        if args.vllm_python:
            clients["vllm bench"] = (
                vllm_bench_command(args.vllm_python, load, folder),
                VLLM_ENV,
                "",
            )
        if args.aiperf:
            clients["aiperf"] = (aiperf_command(args.aiperf, load, folder), {}, "")
        found: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(args.rounds):
            for name, (command, env, only) in clients.items():
                found[name].append(streaming_cost(command, env, url, only))
    told = {
        name: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for name, values in found.items()
    }
    for name, one in told.items():
        print(
            f"  {name:28} {one['median']:.4f} CPU-s per 1 000 tokens  [{one['least']:.4f},"
            f" {one['most']:.4f}]"
        )
    return told


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--duration", type=float, default=10, metavar="S")
    parser.add_argument(
        "--server",
        metavar="URL",
        help="a real server to cross-check on, in place of the scripted one",
    )
    parser.add_argument("--model", help="with --server: the model's name")
    parser.add_argument("--tokenizer", help="the folder of a tokenizer, which the peers need")
    parser.add_argument(
        "--vllm-python",
        type=Path,
        metavar="PYTHON",
        help="a Python with vLLM, for `vllm bench serve`",
    )
    parser.add_argument("--aiperf", type=Path, metavar="PROGRAM", help="NVIDIA's AIPerf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/loadgen-DATE.json"
    )
    args = parser.parse_args(argv)
    report: dict[str, object] = {}
    wrong = False
    if args.server:
        with tempfile.TemporaryDirectory() as folder:
            load = Load(
                args.server,
                args.model,
                args.tokenizer,
                USERS,
                REQUESTS,
                write_prompts(folder, REQUESTS),
                OUTPUT,
            )
            clients: dict[str, Callable[[], Told]] = {
                "gpuconsole": lambda: by_us(load, args.duration)
            }
            if args.vllm_python:
                clients["vllm bench"] = lambda: vllm_bench(args.vllm_python, load)
            if args.aiperf:
                clients["aiperf"] = lambda: aiperf(args.aiperf, load)
            report["cross_check"] = cross_check(load, clients, args.rounds)
    else:
        with scripted_server() as url:
            wrong = against_script(url, args.duration, report)
            print(f"{STREAMS} streams, {args.rounds} rounds")
            report["cpu_s_per_1000_tokens"] = costs(url, args)
    if args.keep:
        keep("loadgen-cross-check" if args.server else "loadgen", report)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
