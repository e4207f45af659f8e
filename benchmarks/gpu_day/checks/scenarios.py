"""The scenarios: the top finding of each is what the scenario teaches. One check for each
scenario."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu_day.check import Day, NotHereError, add
from benchmarks.gpu_day.tools import read, run, summary
from gpuconsole.engine.catalog import scenarios
from gpuconsole.model.scenario import Scenario

TRAINING_S, SERVING_S = 20.0, 15.0
START_S = 25.0
"""Of a process: importing torch, building, compiling."""
COMPILES = ("dynamic-shapes",)
COMPILES_S = 45.0
"""These compile while they run: more seconds until a step is steady."""
TWINS = (
    "unfused-chain", "optimizer-heavy", "naive-attention", "fragmented-memory", "long-sequence",
    "tiny-batch", "finetune-lora", "train-gpt", "zero-memory", "decode-one", "serve-batch",
    "kv-pressure", "serve-prefix", "context-cliff", "serve-long",
)  # fmt: skip
"""Scenarios whose fault a case of DiagBench has too (G01 to GV7), or whose figures another check
measures: they come after those."""
BESIDE = "host.cpu_contention"
"""Other programs on the machine are no cause of the scenario's own."""
NOTHING = "no finding"


def teaches(scenario: Scenario, duration_s: float, day: Day) -> None:
    """The run ends well, its phases sum to 1, and its top finding is the one that the scenario
    teaches."""
    ranks = int(scenario.knobs_for("gpu").get("nproc", 1))
    gpus = sum(device.is_gpu for device in read().state.devices)
    if ranks > max(1, gpus):
        raise NotHereError(f"it needs {ranks} GPUs, here {'is' if gpus == 1 else 'are'} {gpus}")
    recording = day.folder / f"{scenario.name}.jsonl"
    recording.unlink(missing_ok=True)
    found = run(day, scenario.name, duration_s, "--record", str(recording)).runs[-1]
    fired = [one.rule for one in found.findings if one.state == "fires"]
    top, taught = (
        next((rule for rule in fired if rule != BESIDE), NOTHING),
        scenario.teaches.rule or NOTHING,
    )
    day.require("top finding", top == taught, top if top == taught else f"{top}, expected {taught}")
    if phases := summary(found).get("phases_ratio"):
        day.expect("sum of the phases", sum(phases.values()), low=0.999, high=1.001)
        day.note("largest phase", max(phases, key=lambda name: phases[name]))
    for name, unit in (("mfu_ratio", ""), ("mbu_ratio", ""), ("memory_peak_bytes", "bytes")):
        if isinstance(value := summary(found).get(name), int | float):
            day.note(name, float(value), unit)
    day.data.update(fired=fired, device=found.device, unavailable=found.unavailable)


for _name, _scenario in scenarios()[0].items():
    _serves = _scenario.workload.serves
    _duration_s = SERVING_S if _serves else COMPILES_S if _name in COMPILES else TRAINING_S
    add(
        f"scenario.{_name}",
        f"The top finding is {_scenario.teaches.rule or 'none'}",
        (90 if _name not in TWINS else 70) - 5 * _serves,
        _duration_s + START_S,
        partial(teaches, _scenario, _duration_s),
    )
