"""`gpuconsole scenarios --check`, by the real command."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Cli, Machine

CHECK = ("scenarios", "--check")


def test_the_table_of_a_named_card_is_aligned_and_fits(cli: Cli) -> None:
    done = cli(*CHECK, "--device-name", "NVIDIA L4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("NVIDIA L4: 24 GB, memory 300 GB/s, bf16 121 TFLOP/s, no NVLink, at most 72 W")
    assert max(map(len, lines)) <= 120
    head = next(line for line in lines if line.startswith("scenario "))
    rows = lines[lines.index(head) + 1 : -1]
    assert sum(row[0] != " " for row in rows) == 32
    assert all(row[head.index("because") - 2 : head.index("because")] == "  " for row in rows)
    assert {row[head.index("teaches") :].split("  ")[0] for row in rows if row[0] != " "} == {"yes", "not known"}
    assert lines[-1] == "31 of 32 scenarios teach what they say here, 1 cannot be predicted. All of them fit."


def test_json_has_every_figure(cli: Cli) -> None:
    done = cli(*CHECK, "train-gpt", "--device-name", "NVIDIA H100 80GB HBM3", "--json")
    (card,) = json.loads(done.stdout)
    (found,) = card["scenarios"]
    assert card["device"] == "NVIDIA H100 80GB HBM3" and card["memory_bytes"] == 80e9
    assert found["scenario"] == "train-gpt" and found["rule"] == "gpu.compute_bound_healthy"
    assert found["fits"] and found["teaches"] and 30e9 < found["memory_bytes"] < 79e9
    assert found["limit"] == "arithmetic" and 0.5 < found["limit_ratio"] < 1 and found["step_s"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*CHECK, "--device-name", "NVIDIA L5"), ["--device-name 'NVIDIA L5'", "no datasheet numbers", "known:", "L40S", "H200"]),
        ((*CHECK, "--device-name", "AMD EPYC"), ["no datasheet numbers", "RTX 4090"]),
        ((*CHECK, "nothing", "--device-name", "NVIDIA L4"), ["there is no scenario 'nothing'"]),
        (("scenarios", "--device-name", "NVIDIA L4"), ["--device-name needs --check"]),
    ],
)
def test_bad_usage_is_one_line(cli_here: Cli, words: tuple[str, ...], said: list[str]) -> None:
    done = cli_here(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in said), done.stderr


def test_without_a_name_it_checks_the_cards_of_this_machine(cli: Cli, machine: Machine) -> None:
    _, env = machine("gpus 2")
    done = cli(*CHECK, "--json", env=env)
    assert done.returncode == 0, done.stderr
    (card,) = json.loads(done.stdout)
    assert card["device"] == "NVIDIA H200"
    why = {one["scenario"]: one["why"] for one in card["scenarios"]}
    assert why["tensor-parallel"] == "needs 8 GPUs, and this machine has 2 of them"


def test_a_machine_without_a_card_says_how_to_name_one(cli: Cli, machine: Machine) -> None:
    _, env = machine("gpus 0")
    done = cli(*CHECK, env=env)
    assert done.returncode == 2
    assert "--check needs a GPU" in done.stderr and "--device-name 'NVIDIA L4'" in done.stderr
