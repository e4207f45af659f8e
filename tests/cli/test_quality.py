"""`gpuconsole quality` on a server that can, and on one that cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuconsole.workloads.serving.load.quality import fixed_text, passkey_prompt
from tests.conftest import Cli
from tests.fakes.processes import address_of


@pytest.fixture(scope="module")
def fake_server() -> Iterator[str]:
    with address_of("model_server") as url:
        yield url


def test_a_server_that_reads_finds_every_passkey_and_has_the_perplexity_of_its_scores(
    cli: Cli, fake_server: str
) -> None:
    done = cli(
        "quality", "--url", f"{fake_server}/passkey", "--lengths", "500,5000", "--depths", "0,0.5,1"
    )
    assert done.returncode == 0, done.stderr
    assert "perplexity   4   " in done.stdout and "passkeys     6 of 6 found" in done.stdout


@pytest.mark.slow
def test_a_model_with_random_weights_finds_none(cli: Cli) -> None:
    done = cli(
        "quality",
        "serve-chat",
        "--device",
        "cpu",
        "--set",
        "d_model=64",
        "--set",
        "n_layer=1",
        "--depths",
        "0.2,0.8",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    perplexity, *passkeys = json.loads(done.stdout)
    assert [one["signals"]["quality.passkey"]["value"] for one in passkeys] == [0, 0]
    assert 200 < perplexity["signals"]["quality.perplexity"]["value"] < 400, (
        "256 bytes, none likelier than another"
    )


def test_a_server_without_such_answers_says_so(cli: Cli, fake_server: str) -> None:
    done = cli("quality", "--url", f"{fake_server}/error", "--depths", "0.5")
    assert done.returncode == 1 and "perplexity   n/a: HTTP 500" in done.stdout


def test_training_scenarios_are_refused(cli: Cli) -> None:
    done = cli("quality", "train-gpt")
    assert done.returncode == 2 and "quality measures model servers" in done.stderr


def test_a_recording_is_refused_since_there_is_no_session(cli: Cli, tmp_path: Path) -> None:
    done = cli("quality", "--record", str(tmp_path / "f.jsonl"))
    assert (
        done.returncode == 2
        and "this command has no option '--record'" in done.stderr
        and done.stderr.count("\n") == 1
    )


def test_the_fixed_text_stays_the_same_and_a_passkey_stands_where_it_is_said() -> None:
    assert fixed_text() == fixed_text() and len(set(fixed_text())) == 8
    early, late = (passkey_prompt("12345", 3000, depth).index("12345") for depth in (0.1, 0.9))
    assert 300 < early < 700 and 2400 < late < 2900
    assert abs(len(passkey_prompt("12345", 3000, 0.5)) - 3000) < 10
