from pathlib import Path

import pytest

from gpuconsole.engine.catalog import (
    find_scenario,
    read_scenario,
    scenarios,
    scenarios_folder,
    shipped_folder,
    workloads,
)
from gpuconsole.model.machine import Device
from gpuconsole.model.scenario import ScenarioError

GOOD = (shipped_folder() / "train-gpt.toml").read_text()


def test_shipped_scenarios_teach_rules_and_fixes_that_exist() -> None:
    from gpuconsole.diagnosis.engine import all_rules

    found, mistakes = scenarios()
    assert mistakes == []
    assert {
        "train-gpt",
        "train-vision",
        "data-starved",
        "tiny-batch",
        "chatty-logging",
        "slow-checkpoint",
    } <= set(found)
    rules = {rule.id for rule in all_rules()}
    for scenario in found.values():
        assert scenario.teaches.rule in {*rules, ""}
        assert {*scenario.teaches.fix, *scenario.teaches.gpu_fix} <= set(scenario.workload.knobs)
        assert (
            set(scenario.knobs_for("cpu"))
            == set(scenario.knobs_for("gpu"))
            == set(scenario.workload.knobs)
        )


def test_workloads_have_the_knobs_that_the_issue_names() -> None:
    known = workloads()
    assert set(known["training.gpt"].knobs) >= {
        "batch_size",
        "seq_len",
        "precision",
        "torch_compile",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "optim",
        "log_every",
        "save_every",
        "eval_every",
    }
    assert set(known["training.vision"].knobs) >= {
        "batch_size",
        "num_workers",
        "prefetch_factor",
        "pin_memory",
        "persistent_workers",
        "precision",
        "channels_last",
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("batch_size = 8", "batchsize = 8"), ["[cpu]", "batchsize", "did you mean 'batch_size'"]),
        (("batch_size = 8", "batch_size = -1"), ["batch_size", "int 1..65536"]),
        (("batch_size = 8", ""), ["[cpu]", "no value for batch_size"]),
        (
            ('workload = "training.gpt"', 'workload = "training.gtp"'),
            ["workload", "did you mean 'training.gpt'"],
        ),
        (('title = "', 'titel = "'), ["titel", "allowed keys"]),
        (("[knobs]", "[knobs"), ["not valid TOML"]),
        (("log_every = 10", 'log_every = "ten"'), ["log_every", "int"]),
        (("[gpu.80GB]", "[gpu.80]"), ["[gpu.80]", "no memory size", "[gpu.80GB]"]),
        (("[gpu.80GB]", "[gpu.80GB]\nbatch = 2"), ["[gpu.80GB]", "did you mean 'batch_size'"]),
    ],
)
def test_a_mistake_names_file_key_and_what_is_allowed(
    tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    path = tmp_path / "mine.toml"
    assert change[0] in GOOD
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in [str(path), *words]), message


def test_a_users_scenario_is_found_and_a_broken_one_is_reported() -> None:
    folder = scenarios_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.toml").write_text(GOOD.replace('name = "train-gpt"', 'name = "mine"'))
    (folder / "broken.toml").write_text("name = 1")
    try:
        assert find_scenario("mine").workload.name == "training.gpt"
        found, mistakes = scenarios()
        assert "mine" in found
        assert len(mistakes) == 1
        assert "broken.toml" in mistakes[0]
    finally:
        (folder / "mine.toml").unlink()
        (folder / "broken.toml").unlink()


def test_unknown_names_and_unreadable_files() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'train-gpt'"):
        find_scenario("train-gtp")
    with pytest.raises(ScenarioError, match="cannot be read"):
        find_scenario("./nothing-here.toml")


def test_a_gpu_takes_the_values_of_every_size_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    base = GOOD[: GOOD.index("[gpu]")]
    tables = (
        "[gpu.80GB]\nbatch_size = 64\n[gpu]\nbatch_size = 8\nseq_len = 512\nd_model = 64\n"
        "n_layer = 1\n[gpu.40GB]\nbatch_size = 32\nn_layer = 2\n"
    )
    path.write_text(base + tables)
    scenario = read_scenario(path)
    assert list(scenario.gpu_sizes) == ["40GB", "80GB"]
    # memory as NVML reports it, in bytes: not known, L4, A100 40 GB, L40S, A100 80 GB, H100 80 GB,
    # H200
    memory = (0, 24.1e9, 42.4e9, 48.3e9, 85.1e9, 85.5e9, 150.7e9)
    found = [scenario.knobs_for("gpu", size) for size in memory]
    assert [one["batch_size"] for one in found] == [8, 8, 32, 32, 64, 64, 64]
    assert [one["n_layer"] for one in found] == [1, 1, 2, 2, 2, 2, 2]
    assert (
        scenario.knobs_on(Device("gpu:0", "NVIDIA L40S", memory_bytes=48_300_000_000))["batch_size"]
        == 32
    )
    assert scenario.knobs_on(Device("cpu", "host", memory_bytes=10**12)) == scenario.knobs_for(
        "cpu"
    )


def test_a_fix_may_differ_on_a_gpu() -> None:
    teaches = find_scenario("fragmented-memory").teaches
    assert teaches.fix_on(Device("cpu", "host")) == {"malloc_mmap_threshold_kb": 256}
    assert teaches.fix_on(Device("gpu:0", "NVIDIA L4")) == {
        "pytorch_alloc_conf": "expandable_segments:True"
    }
    assert find_scenario("tiny-batch").teaches.fix_on(Device("gpu:0", "NVIDIA L4")) == {
        "batch_size": 4
    }
