"""Serving scenarios through the real command line: the embedded server, a server at an address, and
their ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Cli, Machine
from tests.fakes.faulty_server import FaultyServer
from tests.fakes.model_server import ITL_S, KEY, RUNNING, TTFT_S, WAITING
from tests.fakes.processes import address_of
from tests.waiting import gone, wait_until

SMALL = [word for knob in ("d_model=64", "n_layer=1") for word in ("--set", knob)]
PARTS = (
    "gpuconsole.workloads.serving.worker",
    "gpuconsole.workloads.serving.engine",
    "gpuconsole.workloads.serving.load.generator",
)


@pytest.fixture(scope="module")
def fake_server() -> Iterator[str]:
    """The address of the scripted server; append a behaviour."""
    with address_of("model_server") as url:
        yield url


def only_run(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (run,) = json.loads(done.stdout)["runs"]
    return dict(run)


@pytest.mark.slow
def test_the_embedded_server_answers_and_every_figure_is_there(cli: Cli) -> None:
    done = cli(
        "run",
        "serve-chat",
        "--device",
        "cpu",
        "--json",
        "--duration",
        "5",
        "--slo",
        "ttft=5,tpot=5",
        *SMALL,
    )
    assert done.returncode == 0, done.stderr
    run = only_run(done)
    summary = run["summary"]
    for latency in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "chunk_gap_s", "client_queue_s"):
        found = summary[latency]
        assert 0 <= found["p50"] <= found["p90"] <= found["p95"] <= found["p99"], latency
    assert (
        summary["requests"] == summary["e2e_s"]["n"] > 8 and summary.get("failed_requests", 0) == 0
    )
    assert summary["tokens_per_s"]["mean"] > 0 and summary["requests_per_s"]["mean"] > 0
    assert summary["goodput_per_s"] == pytest.approx(summary["requests_per_s"]["mean"], rel=0.5)
    assert set(summary["phases_ratio"]) == {
        "client_queue",
        "queue",
        "prefill",
        "decode",
        "transport",
    }
    assert max(run["series"]["server.requests_running{device=server}"]["v"]) == 8, (
        "all eight users in one batch, by the server's own count"
    )
    assert run["facts"]["parameters"] > 0
    assert {finding["rule"].split(".")[0] for finding in run["findings"]} == {
        "serve",
        "hw",
        "link",
    }, "rules about training have nothing to say"


@pytest.mark.slow
def test_recorded_prompts_are_sent_as_they_are(cli: Cli, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"prompt": "In the beginning " + "x" * n, "output_tokens": 5}) + "\n"
            for n in (1, 5)
        )
    )
    done = cli(
        "run",
        "serve-chat",
        "--device",
        "cpu",
        "--json",
        "--duration",
        "5",
        "--prompts",
        str(prompts),
        *SMALL,
    )
    assert done.returncode == 0, done.stderr
    run = only_run(done)
    assert run["signals"]["client.output_tokens"]["value"] == 5 and run["signals"][
        "client.prompt_tokens"
    ]["value"] == pytest.approx(20, abs=1)
    assert run["signals"]["client.shared_prefix_ratio"]["value"] == pytest.approx(36 / 40)
    assert "prompts come from a file" in run["unavailable"]["knob.prompt_tokens"]


@pytest.mark.slow
def test_fewer_sequence_slots_are_tried_in_the_same_server(cli: Cli) -> None:
    words = ("--try", "max_num_seqs=1", "--set", "output_tokens=16", *SMALL)
    done = cli("run", "serve-chat", "--device", "cpu", "--json", "--duration", "5", *words)
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert trial["method"] == "live ABBA" and trial["verdict"] in ("worse", "no_gain"), (
        "one after the other is no faster than eight at once"
    )


@pytest.mark.slow
def test_a_server_at_an_address_is_measured_from_outside(cli: Cli, fake_server: str) -> None:
    done = cli(
        "run",
        "serve-chat",
        "--url",
        f"{fake_server}/steady",
        "--device",
        "cpu",
        "--json",
        "--duration",
        "4",
        "--set",
        "output_tokens=16",
    )
    assert done.returncode == 0, done.stderr
    run = only_run(done)
    summary = run["summary"]
    assert summary["ttft_s"]["p50"] >= TTFT_S * 0.99 and summary["tpot_s"]["p50"] == pytest.approx(
        ITL_S, rel=0.2
    )
    assert run["series"]["server.requests_waiting{device=server}"]["v"] == [WAITING] * len(
        run["series"]["server.requests_waiting{device=server}"]["v"]
    )
    assert run["signals"]["server.requests_running"]["value"] == RUNNING


@pytest.mark.slow
def test_a_server_at_an_address_is_asked_for_its_settings_again_after_a_restart(
    cli: Cli, fake_server: str, tmp_path: Path
) -> None:
    record = tmp_path / "session.jsonl"
    words = (
        "--url",
        f"{fake_server}/restarts",
        "--record",
        str(record),
        "--set",
        "output_tokens=16",
        "--set",
        "prompt_tokens=900",
    )
    done = cli("run", "serve-chat", "--device", "cpu", "--json", "--duration", "5", *words)
    assert done.returncode == 0, done.stderr
    assert "must fit in the server's max_model_len of 512 tokens" in done.stderr, (
        "the load generator gets the limit"
    )
    known = [
        event["facts"]
        for event in map(json.loads, record.read_text().splitlines())
        if event["event"] == "serverknown"
    ]
    assert [facts["num_blocks"]["value"] for facts in known] == [18, 36]
    assert [facts["max_model_len"]["value"] for facts in known] == [512, 1024]
    assert only_run(done)["server"]["kv_cache_tokens"] == {
        "value": 36 * 16,
        "source": "vllm:cache_config_info",
    }


@pytest.mark.slow
def test_suggestions_for_a_server_at_an_address_start_from_its_own_settings_and_are_not_tried(
    cli: Cli, fake_server: str
) -> None:
    words = (
        "--url",
        f"{fake_server}/pressed",
        "--apply-top",
        "--set",
        "output_tokens=16",
        "--headless",
        "--duration",
        "6",
    )
    done = cli("run", "kv-pressure", "--device", "cpu", *words)
    assert done.returncode == 0, done.stderr
    assert (
        "num_gpu_blocks_override 18 -> 0" in done.stdout
        and "omit --num-gpu-blocks-override" in done.stdout
    )
    assert (
        "not tried from here: num_gpu_blocks_override: gpuconsole did not start this server"
        in done.stdout
    )
    assert re.search(r"try max_num_seqs 8 ", done.stdout), (
        "the server does not report its present value"
    )
    assert (
        "no trial: the suggestion cannot be tried from here" in done.stderr
        and "trial 1" not in done.stdout
    )


ONE_BY_ONE = ("--set", "concurrency=1")
"""A failure counts at once, an answer when it is whole. With eight requests on their way, a slow
machine has many more failures than answers at the end of a short run."""


@pytest.mark.slow
def test_failures_are_counted_and_the_command_fails_where_valid_figures_are_required(
    cli: Cli, fake_server: str, tmp_path: Path
) -> None:
    url = ("--url", f"{fake_server}/every-other", *ONE_BY_ONE, "--device", "cpu")
    words = (
        "--headless",
        "--require-valid",
        "--snapshot",
        "s.json",
        "--duration",
        "4",
        "--set",
        "output_tokens=8",
    )
    done = cli("run", "serve-chat", *url, *words)
    assert done.returncode == 1, done.stderr
    (run,) = json.loads((tmp_path / "s.json").read_text())["runs"]
    assert run["summary"]["requests"] > 0 and run["summary"]["failed_requests"] > 0
    assert list(run["summary"]["failures"]) == ["HTTP 429: too many requests"]
    assert "/every-other/metrics: HTTP 404; the state of the server is unknown" in done.stderr
    assert run["validity"]["verdict"] == "degraded"
    reason = run["validity"]["reasons"][0]
    assert "% of the requests failed; the commonest cause: HTTP 429: too many requests" in reason
    assert f"gpuconsole: run 1 is degraded: {reason}" in done.stderr
    assert done.stdout.splitlines()[1].split()[:2] == ["numbers", "degraded:"], (
        "the first line of the summary"
    )
    assert "no fault found" not in done.stdout
    # on a busy machine the load generator waits too
    fires = any(finding["state"] == "fires" for finding in run["findings"])
    assert fires or "no conclusion: the numbers are degraded: " in done.stdout


@pytest.mark.slow
def test_a_server_that_does_not_serve_ends_the_run_with_the_cause(
    cli: Cli, fake_server: str
) -> None:
    words = ("--url", f"{fake_server}/busy", "--device", "cpu", "--headless", "--duration", "3")
    done = cli("run", "serve-chat", *words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no request is answered; HTTP 429: too many requests" in done.stderr


def answered(server: FaultyServer) -> float:
    """Requests that the server has answered, by its own count."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total")
    )


@pytest.mark.slow
def test_an_outage_is_said_at_once_and_is_in_no_rate(tmp_path: Path) -> None:
    with FaultyServer() as server:
        errors = tmp_path / "errors"
        words = (
            "--url",
            server.url,
            "--device",
            "cpu",
            "--json",
            "--duration",
            "10",
            "--set",
            "output_tokens=16",
        )
        command = [sys.executable, "-m", "gpuconsole", "run", "serve-chat", *words]
        with errors.open("w") as stderr:
            console = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            wait_until(lambda: answered(server) > 16, 20, "the end of the warm-up")
            server.begin("restarts")
            wait_until(
                lambda: "gpuconsole: the server does not answer: " in errors.read_text(),
                2,
                "the outage",
            )
            stdout, _ = console.communicate(timeout=30)
        finally:
            console.kill()
    assert console.returncode == 0
    assert "gpuconsole: the server answers again after " in errors.read_text()
    (run,) = json.loads(stdout)["runs"]
    assert run["validity"]["verdict"] == "degraded" and run["validity"]["reasons"][0].startswith(
        "the server did not answer for "
    )
    rate = run["summary"]["tokens_per_s"]
    assert rate["mean"] == pytest.approx(rate["p50"], rel=0.25), "without the time of the outage"


def test_the_key_is_used_and_written_nowhere(cli: Cli, fake_server: str, tmp_path: Path) -> None:
    record = tmp_path / "session.jsonl"
    words = (
        "--url",
        f"{fake_server}/key",
        "--api-key-env",
        "FAKE_KEY",
        "--record",
        str(record),
        "--json",
        "--duration",
        "2",
        "--set",
        "output_tokens=4",
    )
    done = cli("run", "serve-chat", "--device", "cpu", *words, env={**os.environ, "FAKE_KEY": KEY})
    assert done.returncode == 0, done.stderr
    assert only_run(done)["summary"]["requests"] > 0
    assert KEY not in done.stdout + done.stderr + record.read_text()


@pytest.mark.slow
def test_the_run_waits_for_a_server_that_starts_slowly(cli: Cli, fake_server: str) -> None:
    done = cli(
        "run",
        "serve-chat",
        "--url",
        f"{fake_server}/slow-start",
        "--device",
        "cpu",
        "--json",
        "--duration",
        "1",
        "--set",
        "output_tokens=4",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("train-gpt", "--url", "http://127.0.0.1:1"), "--url: only for serving scenarios"),
        (("serve-chat", "--url", "127.0.0.1:1"), "must be an address"),
        (
            ("serve-chat", "--url", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH_KEY"),
            "this environment variable does not exist",
        ),
        (("serve-chat", "--slo", "ttft=fast"), "not a number of seconds"),
        (("serve-chat", "--slo", "p99=1"), "expected ttft=S, tpot=S or e2e=S"),
        (
            ("serve-chat", "--set", "server=vllm", "--vllm-python", "/nowhere/python"),
            "is not a program that can be run",
        ),
        (
            ("serve-chat", "--prompts", "/nowhere.jsonl"),
            "--prompts /nowhere.jsonl: No such file or directory",
        ),
        (("serve-chat", "--prompts", __file__), "line 1: Expected `object`, got `str`"),
        (("serve-chat", "--set", "batch_size=3"), "has no setting 'batch_size'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    cli_here: Cli, words: tuple[str, ...], reason: str
) -> None:
    done = cli_here("run", *words, "--headless")
    assert done.returncode == 2 and reason in done.stderr


STUB = Path(__file__).parent.parent / "fakes" / "vllm_stub"


def with_vllm(
    cli: Cli,
    tmp_path: Path,
    *words: str,
    scenario: str = "serve-chat",
    env: dict[str, str] | None = None,
    on_cpu: bool = True,
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A run with the stub of vLLM, and the file with its flags."""
    flags = tmp_path / "flags"
    before = env or dict(os.environ)
    env = {
        **before,
        "PYTHONPATH": os.pathsep.join((str(STUB), os.environ["PYTHONPATH"])),
        "VLLM_STUB_FLAGS": str(flags),
    }
    device = () if "--device" in words or not on_cpu else ("--device", "cpu")
    common = (
        "--set",
        "server=vllm",
        "--vllm-python",
        sys.executable,
        *device,
        "--json",
        "--duration",
        "1",
    )
    return cli("run", scenario, *common, "--set", "output_tokens=4", *words, env=env), flags


def test_vllm_is_started_with_its_flags_and_followed_through_its_log(
    cli: Cli, tmp_path: Path
) -> None:
    sets = (
        "--set",
        "kv_cache_dtype=fp8",
        "--set",
        "enable_prefix_caching=false",
        "--set",
        "enforce_eager=true",
        "--vllm-args=--seed 7",
    )
    done, flags = with_vllm(cli, tmp_path, "--model", "some/model", *sets)
    assert done.returncode == 0, done.stderr
    run = only_run(done)
    assert run["summary"]["requests"] > 0 and run["facts"]["kv_cache_tokens"] == 12800
    line = flags.read_text()
    for expected in (
        "--model some/model",
        "--kv-cache-dtype fp8",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--seed 7",
    ):
        assert expected in line
    assert "--quantization" not in line and "--enable-mfu-metrics" in line
    assert "--max-num-seqs" not in line and "--max-num-batched-tokens" not in line, (
        "vLLM knows the card and the model"
    )
    limits = {name: run["knobs"][name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    assert (
        limits == {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
        and run["facts"]["live_limit.max_num_seqs"] == 1024
    )


@pytest.mark.parametrize(
    ("scenario", "words", "seats"),
    # the user's own; the fault that the scenario teaches
    [("serve-chat", ("--set", "max_num_seqs=48"), 48), ("serve-batch", (), 8)],
)
@pytest.mark.slow
def test_limits_of_the_user_and_of_a_taught_fault_are_given_to_vllm(
    cli: Cli, tmp_path: Path, scenario: str, words: tuple[str, ...], seats: int
) -> None:
    done, flags = with_vllm(cli, tmp_path, "--model", "some/model", *words, scenario=scenario)
    assert done.returncode == 0, done.stderr
    assert (
        f"--max-num-seqs {seats} " in flags.read_text()
        and "--max-num-batched-tokens" not in flags.read_text()
    )
    assert only_run(done)["knobs"]["max_num_seqs"] == seats


@pytest.mark.slow
def test_a_rule_without_the_limit_says_so(cli: Cli, tmp_path: Path) -> None:
    """With a scheduler of the user's own, nobody reports the sequence slots that vLLM has
    chosen."""
    done, _ = with_vllm(
        cli, tmp_path, "--model", "some/model", "--vllm-args=--scheduler-cls my.Own"
    )
    assert done.returncode == 0, done.stderr
    run = only_run(done)
    finding = next(one for one in run["findings"] if one["rule"] == "serve.sequence_cap")
    assert run["knobs"]["max_num_seqs"] == 0 and finding["state"] == "cant_tell"


@pytest.mark.slow
def test_a_vllm_that_does_not_fit_on_the_card_is_refused_before_it_starts(
    cli: Cli, tmp_path: Path, machine: Machine
) -> None:
    _, env = machine(
        "gpus 1",
        "gpu 0 memory_total_bytes 80e9",
        "gpu 0 memory_used_bytes 60e9",
        "gpu 0 memory_reserved_bytes 0",
    )
    done, flags = with_vllm(cli, tmp_path, "--model", "some/model", "--device", "gpu:0", env=env)
    assert done.returncode == 1 and not flags.exists(), "vLLM was not started"
    assert (
        "vLLM does not fit on gpu:0: it takes 72.0 GB (gpu_memory_utilization 0.9 of 80.0 GB), and"
        " 20.0 GB are free, because other processes hold 60.0 GB. End them, or --set"
        " gpu_memory_utilization=0.24"
    ) in done.stderr
    done, flags = with_vllm(
        cli,
        tmp_path,
        "--model",
        "some/model",
        "--device",
        "gpu:0",
        "--set",
        "gpu_memory_utilization=0.24",
        env=env,
    )
    assert done.returncode == 0 and flags.exists(), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("full", "device", "gpus"),
    [
        ((0, 1), "gpu:3", "gpu:3 gpu:2"),  # the run's own GPU first
        ((3,), "", ""),
    ],
)
def test_a_vllm_on_two_gpus_gets_and_is_judged_on_those_that_the_user_left_visible(
    cli: Cli, tmp_path: Path, machine: Machine, full: tuple[int, ...], device: str, gpus: str
) -> None:
    _, env = machine(
        "gpus 4",
        *(f"gpu {gpu} memory_total_bytes 80e9" for gpu in range(4)),
        *(f"gpu {gpu} memory_reserved_bytes 0" for gpu in range(4)),
        *(f"gpu {gpu} memory_used_bytes {60e9 if gpu in full else 1e9}" for gpu in range(4)),
    )
    words = ("--device", device) if device else ()
    done, flags = with_vllm(
        cli,
        tmp_path,
        "--model",
        "some/model",
        "--set",
        "tensor_parallel_size=2",
        *words,
        on_cpu=False,
        env=env | {"CUDA_VISIBLE_DEVICES": "2,3"},
    )
    if not gpus:
        assert done.returncode == 1 and not flags.exists()
        assert "vLLM does not fit on gpu:3" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert f"GPUs {gpus.replace('gpu:', '').replace(' ', ',')}\n" in flags.read_text()
    run = only_run(done)
    assert (run["device"], run["server_devices"]) == (gpus.split()[0], gpus.split())


def test_the_reason_why_vllm_did_not_start_is_its_own_message(cli: Cli, tmp_path: Path) -> None:
    done, _ = with_vllm(cli, tmp_path, "--model", "too-large")
    assert done.returncode == 1
    assert (
        "the model server ended with exit code 1: ValueError: No available memory for the cache"
        " blocks."
    ) in done.stderr


def test_a_python_without_vllm_is_named(cli: Cli) -> None:
    words = (
        "--set",
        "server=vllm",
        "--vllm-python",
        sys.executable,
        "--model",
        "some/model",
        "--device",
        "cpu",
        "--headless",
    )
    done = cli("run", "serve-chat", *words)
    assert (
        done.returncode == 1
        and f"{sys.executable} has no vLLM: set --vllm-python to a Python that has vLLM"
        in done.stderr
    )


def test_vllm_needs_a_model(cli: Cli, tmp_path: Path) -> None:
    done, _ = with_vllm(cli, tmp_path)
    assert (
        done.returncode == 1
        and "server=vllm needs a model: --model NAME, or a directory" in done.stderr
    )


def started(words: list[str], errors: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A console with a server under load, and its children."""
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "serve-chat",
        "--device",
        "cpu",
        "--headless",
        "--duration",
        "100",
        *SMALL,
        *words,
    ]
    console = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=errors.open("w"), text=True
    )
    wait_until(lambda: "tokens/s" in errors.read_text(), 60, "the first requests")
    return console, psutil.Process(console.pid).children(recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_however_the_console_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    console, children = started([], tmp_path / "errors")
    try:
        assert all(any(part in child.cmdline() for child in children) for part in PARTS)
        os.kill(console.pid, number)
        console.wait(30)
        wait_until(lambda: all(gone(child.pid) for child in children), 20, "the end of every child")
    finally:
        console.kill()


@pytest.mark.slow
def test_a_server_that_dies_ends_the_run_and_is_named(tmp_path: Path) -> None:
    console, children = started([], tmp_path / "errors")
    try:
        next(child for child in children if PARTS[1] in child.cmdline()).kill()
        assert console.wait(30) == 1
        assert "the model server was killed by SIGKILL" in (tmp_path / "errors").read_text()
    finally:
        console.kill()
