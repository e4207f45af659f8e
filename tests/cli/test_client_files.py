"""`gpuconsole compare` and `report` on result files of other clients of model servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.fakes.client_results import (
    BEGUN,
    Sent,
    aiperf,
    aiperf_records,
    guidellm,
    serve,
    sglang,
    vllm,
)


def written(path: Path, *results: dict[str, Any] | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "\n".join(result if isinstance(result, str) else json.dumps(result) for result in results)
    )
    return str(path)


def in_turn(folder: Path, slower: float, runs: int = 5, **load: Any) -> tuple[str, str]:
    """Folders of results of two servers, measured in turn; the second is `slower`."""
    for place, label in enumerate(("old", "new", "new", "old") * runs):
        if place < 2 * runs:
            sent = serve(
                place, count=150, spread=0.01, slower=slower if label == "new" else 1.0, **load
            )
            written(folder / label / f"{place}.json", vllm(sent, begun=BEGUN + 90 * place, **load))
    return str(folder / "old"), str(folder / "new")


def test_two_results_are_compared_with_intervals(cli: Cli, tmp_path: Path) -> None:
    files = (
        written(tmp_path / "a.json", vllm(serve(1))),
        written(tmp_path / "b.json", vllm(serve(2, slower=1.4), begun=BEGUN + 99)),
    )
    done = cli("compare", *files)
    assert done.returncode == 0, done.stderr
    rows = {
        line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  workload.")
    }
    assert set(rows) == {
        f"workload.{name}"
        for name in ("tokens_per_s", "requests_per_s", "ttft_s", "tpot_s", "e2e_s")
    }
    assert all("worse" in row and "[" in row for row in rows.values())
    assert (
        "can't tell  the machine, the GPU, the version and the settings of the server"
        in done.stdout
        and "the same\n" in done.stdout
    )
    found = json.loads(cli("compare", *files, "--json").stdout)
    assert found["cannot_tell"] and not found.get("unlike")


def test_the_gate_decides_over_folders(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", *in_turn(tmp_path / "slower", 1.12), "--fail-below", "0.97", "--markdown")
    assert (done.returncode, done.stdout[:12]) == (1, "**Regression"), done.stdout + done.stderr
    assert (
        "TTFT p99" in done.stdout
        and "vllm bench serve, Qwen/Qwen3-8B on server: 5 base runs, 5 new runs" in done.stdout
    )
    done = cli("compare", *in_turn(tmp_path / "same", 1.0), "--fail-below", "0.9")
    assert (done.returncode, done.stdout[:14]) == (0, "No regression:"), done.stdout + done.stderr


def test_the_gate_of_an_open_loop_judges_the_speed_of_answers(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", *in_turn(tmp_path, 1.3, rate=4.0), "--fail-below", "0.95")
    assert (
        done.returncode == 1
        and "of the base speed (1 / mean E2E), limit 0.95" in done.stdout.splitlines()[0]
    ), done.stdout + done.stderr


def test_a_file_of_several_runs_of_one_load_counts_them_all(cli: Cli, tmp_path: Path) -> None:
    """As SGLang's bench_serving and --append-result write them. A run of another load in the file
    does not count."""

    def lines(seeds: Sequence[int], begun: int) -> list[dict[str, Any]]:
        tags = [f"2026-06-01T10:{begun + 4 * place:02}:00+00:00" for place in range(len(seeds))]
        return [
            sglang(serve(seed, count=100), tag=tag) for seed, tag in zip(seeds, tags, strict=True)
        ]

    base = written(
        tmp_path / "base.jsonl", sglang(serve(9, users=4), users=4), *lines((1, 2, 3), 0)
    )
    done = cli(
        "compare",
        base,
        written(tmp_path / "new.jsonl", *lines((4, 5, 6), 2)),
        "--fail-below",
        "0.8",
        "--json",
    )
    gate = json.loads(done.stdout)
    assert (gate["base_runs"], gate["new_runs"], gate["ratio"]["in_turn"]) == (3, 3, True), (
        done.stderr
    )
    assert (
        json.loads(
            cli("compare", f"{base}#2", base + "#3", "--fail-below", "0.8", "--json").stdout
        )["base_runs"]
        == 1
    )


def test_the_two_files_of_aiperf_in_a_folder_count_once(cli: Cli, tmp_path: Path) -> None:
    for label, seed in (("old", 1), ("new", 2)):
        written(
            tmp_path / label / "profile_export_aiperf.json",
            aiperf(serve(seed), begun=BEGUN + 90 * seed),
        )
        written(
            tmp_path / label / "profile_export.jsonl",
            aiperf_records(serve(seed), begun=BEGUN + 90 * seed),
        )
    done = cli(
        "compare", str(tmp_path / "old"), str(tmp_path / "new"), "--fail-below", "0.8", "--json"
    )
    gate = json.loads(done.stdout)
    assert (gate["base_runs"], gate["new_runs"]) == (1, 1) and len(gate["cannot_tell"]) == 1, (
        done.stderr
    )


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (vllm(serve(2), model="other/model"), "model Qwen/Qwen3-8B -> other/model"),
        (vllm(serve(2), users=32), "concurrency 8 -> 32"),
        (vllm(serve(2, output=80)), "output tokens 40.2 -> 80.4"),
        (guidellm([serve(2)]), "client vllm bench serve -> GuideLLM"),
    ],
)
def test_another_load_is_one_line_and_exit_code_2(
    cli: Cli, tmp_path: Path, after: dict[str, Any], words: str
) -> None:
    files = written(tmp_path / "a.json", vllm(serve(1))), written(tmp_path / "b.json", after)
    done = cli("compare", *files, "--fail-below", "0.9")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr == f"gpuconsole: {files[0]} and {files[1]} are not comparable: {words}\n"
    done = cli("compare", *files)
    assert (
        done.returncode == 0
        and f"differs     {words}" in done.stdout
        and "better" not in done.stdout
        and "worse" not in done.stdout
    )


@pytest.mark.parametrize("content", ["", '{"schema": 3}'])
@pytest.mark.parametrize("command", ["compare", "report"])
def test_a_broken_or_foreign_file_is_one_line_that_names_what_is_allowed(
    cli: Cli, tmp_path: Path, content: str, command: str
) -> None:
    good, bad = (
        written(tmp_path / "good.json", vllm(serve(1))),
        written(tmp_path / "bad.json", content),
    )
    done = cli(command, *((good, bad) if command == "compare" else (bad,)))
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"gpuconsole: {bad}: ")
    assert (
        "allowed: a gpuconsole snapshot, or a JSON result of vllm bench serve, SGLang"
        " bench_serving, AIPerf or GuideLLM"
    ) in done.stderr


def test_a_report_of_a_result_claims_nothing_that_the_file_does_not_hold(
    cli: Cli, tmp_path: Path
) -> None:
    sent: list[Sent] = serve(1, failing=0.005)
    done = cli("report", written(tmp_path / "a.json", vllm(sent)))
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("# 3") and "tokens/s; TTFT 49" in first and "E2E " in first
    assert (
        "its file has no signals of the server" in done.stdout
        and "machine: n/a: the file of the client does not name it" in done.stdout
    )
    for claim in (
        "no fault",
        "No rule found",
        "torch is not installed",
        "this machine has no NVIDIA GPU",
        "with gpuconsole",
    ):
        assert claim not in done.stdout, claim
    assert "measured 2026-" in done.stdout and "with vllm bench serve" in done.stdout
    page = tmp_path / "page.html"
    assert (
        cli("report", str(tmp_path / "a.json"), "--html", str(page)).returncode == 0
        and page.stat().st_size > 5000
    )


def test_other_commands_say_that_a_result_is_no_snapshot(cli: Cli, tmp_path: Path) -> None:
    done = cli("diagnose", written(tmp_path / "a.json", vllm(serve(1))))
    assert (
        done.returncode == 2
        and done.stderr.count("\n") == 1
        and "not a gpuconsole snapshot" in done.stderr
    )
