"""The rules about GPU hardware, launching, synchronising and copying: each cause, and what only
looks like it."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.engine import Hysteresis, all_rules, evaluate, wanted_probes
from gpuconsole.diagnosis.rule import TRIAL_ERROR, Case
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.session.figures.distributions import steady_growth
from tests.diagnosis.cases import case
from tests.diagnosis.test_serving_rules import HEALTHY as HEALTHY_SERVER
from tests.diagnosis.test_serving_rules import KNOBS as SERVER_KNOBS

GPU = {
    "is_gpu": 1.0,
    "mfu_ratio": 0.2,
    "hw__busy_ratio": 0.97,
    "hw__sm_clock_ratio": 0.99,
    "hw__thermal_time_ratio": 0.0,
    "hw__power_cap_time_ratio": 0.0,
    "hw__power_brake_time_ratio": 0.0,
    "hw__other_hold_time_ratio": 0.0,
    "hw__app_clocks_ratio": 0.0,
    "hw__power_limit_w": 700.0,
    "hw__power_limit_max_w": 700.0,
    "hw__temperature_c": 61.0,
    "hw__other_processes": 0.0,
    "hw__lost": 0.0,
    "hw__xid_errors": 0.0,
    "hw__ecc_uncorrected": 0.0,
    "link__pcie_generation": 5.0,
    "link__pcie_generation_max": 5.0,
    "link__pcie_width": 16.0,
    "link__pcie_width_max": 16.0,
    "link__pcie_peak_bytes_per_s": 63e9,
    "probe__issue_s": 0.02,
    "probe__pass_gpu_s": 0.095,
    "probe__pass_s": 0.1,
    "probe__sync_gaps_s": 0.0,
    "probe__gaps_s": 0.002,
    "probe__busy_s": 0.098,
    "probe__syncs_per_step": 1.0,
    "memory__growth_bytes_per_s": 0.0,
    "memory__grown_bytes": 0.0,
}
KNOBS: Knobs = {
    "torch_compile": "off",
    "pin_memory": True,
    "non_blocking": True,
    "h2d_stream": False,
}
NEW = (
    "hw.thermal",
    "hw.power",
    "hw.clocks_low",
    "hw.shared_gpu",
    "hw.errors",
    "link.pcie_degraded",
    "h2d.pageable_or_serial",
    "host.launch_bound",
    "host.sync_stall",
    "comm.slow_link",
    "mem.leak_gpu",
)
NEW_SERVING = ("serve.host_bound", "serve.tp_over_pcie")
HOT = {"hw__thermal_time_ratio": 0.6, "hw__sm_clock_ratio": 0.75, "hw__temperature_c": 91.0}
CAPPED = {"hw__power_cap_time_ratio": 0.9, "hw__sm_clock_ratio": 0.8, "hw__power_limit_w": 450.0}
BRAKED = {"hw__power_brake_time_ratio": 0.5, "hw__sm_clock_ratio": 0.5}
LAUNCHING = {"probe__issue_s": 0.099, "probe__pass_gpu_s": 0.04}
STALLED = {"probe__sync_gaps_s": 0.02, "probe__gaps_s": 0.03, "probe__busy_s": 0.07}
DDP: Knobs = {"sharding": "ddp", "nproc": 2, "bucket_cap_mb": 25.0}
JOINED = {
    "link__nvlink_joined": 1.0,
    "link__nvlink_peak_bytes_per_s": 450e9,
    "link__nvlink_bytes_per_s": 0.0,
    "comm__bytes_per_step": 500e6,
    "comm__bus_bytes_per_s": 20e9,
    "comm__exposed_s": 0.04,
}
LEAK = {"memory__growth_bytes_per_s": 2e6, "memory__grown_bytes": 400e6, "memory__room_bytes": 4e9}


def gpu(without: tuple[str, ...] = (), knobs: Knobs | None = None, **changes: float) -> Case:
    """A healthy case on a GPU with `changes`."""
    return case(without, {**KNOBS, **(knobs or {})}, **{**GPU, **changes})


def server(knobs: Knobs | None = None, **changes: float) -> Case:
    """A healthy vLLM on a GPU with `changes`."""
    healthy = {name.replace("__", "."): value for name, value in {**GPU, **changes}.items()}
    signals = {
        name: Signal(value, "", "test") for name, value in {**HEALTHY_SERVER, **healthy}.items()
    }
    return Case({**SERVER_KNOBS, "server": "vllm", **(knobs or {})}, signals, serves=True)


def of(rule: str, a_case: Case) -> Finding:
    return next(finding for finding in evaluate(a_case) if finding.rule == rule)


def test_on_a_cpu_none_of_them_has_anything_to_say() -> None:
    """Also before the first step, when nothing but the device is known, and without any probe."""
    for a_case in (case(), Case({}, {"is_gpu": Signal(0.0, "", "device")})):
        assert {of(rule, a_case).state for rule in NEW} == {"clear"}
    serving = Case(SERVER_KNOBS, {"is_gpu": Signal(0.0, "", "device")}, serves=True)
    assert {of(rule, serving).state for rule in NEW_SERVING} == {"clear"}


def test_a_healthy_gpu_has_none_of_these_findings() -> None:
    assert {rule: of(rule, gpu()).state for rule in NEW} == dict.fromkeys(NEW, "clear")
    assert {rule: of(rule, server()).state for rule in NEW_SERVING} == dict.fromkeys(
        NEW_SERVING, "clear"
    )


@pytest.mark.parametrize(
    ("rule", "signal"),
    [
        ("hw.thermal", "hw.thermal_time_ratio"),
        ("hw.power", "hw.sm_clock_ratio"),
        ("hw.clocks_low", "hw.app_clocks_ratio"),
        ("hw.shared_gpu", "hw.other_processes"),
        ("hw.errors", "hw.xid_errors"),
        ("link.pcie_degraded", "link.pcie_generation"),
        ("mem.leak_gpu", "memory.growth_bytes_per_s"),
    ],
)
def test_what_the_driver_withholds_is_not_guessed(rule: str, signal: str) -> None:
    finding = of(rule, gpu(without=(signal,)))
    assert (finding.state, finding.missing) == ("cant_tell", (signal,))


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("hw.thermal", HOT),
        ("hw.power", CAPPED),
        ("hw.power", BRAKED),
        ("hw.clocks_low", {"hw__sm_clock_ratio": 0.7, "hw__app_clocks_ratio": 1.0}),
        ("hw.clocks_low", {"hw__sm_clock_ratio": 0.7}),
        (
            "hw.shared_gpu",
            {"hw__other_processes": 1.0, "hw__other_sm_ratio": 0.4, "hw__other_memory_bytes": 5e9},
        ),
        ("hw.errors", {"hw__ecc_uncorrected": 1.0}),
        ("hw.errors", {"hw__lost": 1.0}),
        (
            "link.pcie_degraded",
            {"link__pcie_width": 4.0, "link__pcie_peak_bytes_per_s": 16e9, "h2d_ratio": 0.08},
        ),
        ("link.pcie_degraded", {"probe__h2d_bytes_per_s": 12e9, "h2d_ratio": 0.08}),
        ("link.pcie_degraded", {"link__pcie_replays_per_min": 60.0}),
        ("mem.leak_gpu", LEAK),
        ("host.launch_bound", LAUNCHING),
        ("host.sync_stall", STALLED),
    ],
)
def test_what_fires_and_nothing_else_of_these(rule: str, changes: dict[str, float]) -> None:
    assert [one for one in NEW if of(one, gpu(**changes)).state == "fires"] == [rule]
    assert of(rule, gpu(**changes)).evidence


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("hw.thermal", {"hw__temperature_c": 90.0}),  # warm, and no clock lost
        ("hw.thermal", {"hw__thermal_time_ratio": 0.3}),  # counted, and no clock lost
        # an H100 at full load
        (
            "hw.power",
            {
                "hw__power_cap_time_ratio": 1.0,
                "hw__sm_clock_ratio": 0.97,
                "hw__power_limit_w": 450.0,
            },
        ),
        ("hw.clocks_low", HOT),  # heat explains it
        ("hw.clocks_low", {"hw__sm_clock_ratio": 0.7, "hw__other_hold_time_ratio": 0.5}),
        (
            "hw.shared_gpu",
            {"hw__other_processes": 1.0, "hw__other_sm_ratio": 0.0, "hw__other_memory_bytes": 50e6},
        ),
        ("hw.errors", {"hw__nvlink_crc_per_s": 3.0}),
        ("link.pcie_degraded", {"link__pcie_replays_per_min": 2.0, "probe__h2d_bytes_per_s": 50e9}),
        ("h2d.pageable_or_serial", {"h2d_ratio": 0.09}),
        ("mem.leak_gpu", {**LEAK, "memory__growth_bytes_per_s": 0.0}),  # grown, and settled
        ("mem.leak_gpu", {**LEAK, "memory__grown_bytes": 20e6}),
        # a full launch queue: the host waits for the GPU
        ("host.launch_bound", {"probe__issue_s": 0.099, "probe__pass_gpu_s": 0.095}),
        # waits in a synchronisation, say
        ("host.launch_bound", {"probe__issue_s": 0.05, "probe__pass_gpu_s": 0.04}),
        ("host.launch_bound", {**LAUNCHING, "runq_ratio": 0.4}),
        ("host.launch_bound", {**LAUNCHING, "mfu_ratio": 0.5}),
        # only the profiler makes gaps
        (
            "host.sync_stall",
            {"probe__sync_gaps_s": 0.02, "probe__gaps_s": 0.03, "probe__busy_s": 0.099},
        ),
        # the GPU idles beside a checkpoint
        ("host.sync_stall", {**STALLED, "checkpoint_ratio": 0.28}),
        ("host.sync_stall", {**STALLED, "data_wait_ratio": 0.28}),
        (
            "host.sync_stall",
            {
                "probe__sync_gaps_s": 0.001,
                "probe__gaps_s": 0.03,
                "probe__busy_s": 0.07,
                "probe__syncs_per_step": 50.0,
            },
        ),
    ],
)
def test_what_only_looks_like_it_is_clear(rule: str, changes: dict[str, float]) -> None:
    assert of(rule, gpu(**changes)).state == "clear"


def test_a_power_limit_below_its_default_is_a_loss_and_any_other_is_for_information() -> None:
    lowered = of("hw.power", gpu(**CAPPED, hw__power_limit_default_w=700.0))
    assert (lowered.note, lowered.recoverable_ratio) == (False, pytest.approx(0.2))
    for limits, words in (
        ({"hw__power_limit_max_w": 450.0}, "at its maximum"),
        ({"hw__power_limit_default_w": 450.0}, "is the default of the board"),
        ({"hw__power_limit_default_w": 400.0}, "above the default of 400 W"),
        ({}, "does not report the default"),
    ):
        finding = of("hw.power", gpu(**CAPPED, **limits))
        assert (finding.note, finding.recoverable_ratio) == (True, 0.0) and words in finding.summary


def test_heat_and_power_share_the_clock_that_is_lost() -> None:
    both = gpu(
        hw__sm_clock_ratio=0.7,
        hw__thermal_time_ratio=0.2,
        hw__power_cap_time_ratio=0.4,
        hw__power_limit_w=450.0,
        hw__power_limit_default_w=700.0,
    )
    shares = [of(rule, both).recoverable_ratio for rule in ("hw.thermal", "hw.power")]
    assert shares == [pytest.approx(0.1), pytest.approx(0.2)]
    assert of("hw.clocks_low", both).state == "clear"


def test_one_that_only_holds_memory_is_for_information() -> None:
    finding = of(
        "hw.shared_gpu",
        gpu(hw__other_processes=1.0, hw__other_sm_ratio=0.0, hw__other_memory_bytes=5e9),
    )
    assert (finding.state, finding.note) == ("fires", True)
    unknown = of("hw.shared_gpu", gpu(hw__other_processes=1.0, hw__other_memory_bytes=5e7))
    assert unknown.missing == ("hw.other_sm_ratio",)


def test_errors_stand_before_all_that_is_about_speed() -> None:
    assert evaluate(gpu(**HOT, hw__xid_errors=1.0))[0].rule == "hw.errors"
    assert evaluate(gpu(**HOT))[0].rule == "hw.thermal"
    # hardware fails whoever uses it
    assert evaluate(server(hw__ecc_uncorrected=2.0))[0].rule == "hw.errors"


def test_a_degraded_link_stakes_the_copies_that_it_slows_and_is_else_for_information() -> None:
    narrow = {"link__pcie_width": 4.0, "link__pcie_peak_bytes_per_s": 16e9}
    assert of(
        "link.pcie_degraded", gpu(**narrow, h2d_ratio=0.3)
    ).recoverable_ratio == pytest.approx(0.225)
    assert of("link.pcie_degraded", gpu(**narrow)).note


def test_pageable_copies_that_the_agent_counts_are_named_where_no_knob_can_pin_them() -> None:
    finding = of(
        "h2d.pageable_or_serial",
        gpu(knobs={"h2d_stream": True}, h2d_ratio=0.4, h2d__pageable_copies=2.0),
    )
    assert (finding.state, finding.suggestions, finding.note) == ("fires", (), False)
    assert (
        "from pageable memory" in finding.summary
        and "pin_memory().to(device, non_blocking=True)" in finding.summary
    )
    assert of(
        "h2d.pageable_or_serial",
        gpu(knobs={"h2d_stream": True}, h2d_ratio=0.4, h2d__pageable_copies=0.0),
    ).note


def test_pageable_copies_ask_for_the_probe_that_predicts_and_then_predict() -> None:
    pageable: Knobs = {"pin_memory": False}
    before = of("h2d.pageable_or_serial", gpu(knobs=pageable, h2d_ratio=0.4))
    assert (before.state, before.suggestions[0].predicted_speedup) == ("fires", None)
    assert "h2d_copies" in wanted_probes([before])
    after = of(
        "h2d.pageable_or_serial",
        gpu(knobs=pageable, h2d_ratio=0.4, probe__h2d_pageable_s=0.04, probe__h2d_pinned_s=0.01),
    )
    assert [one.changes for one in after.suggestions] == [
        {"pin_memory": True},
        {"pin_memory": True, "h2d_stream": True},
    ]
    predicted = after.suggestions[0].predicted_speedup
    assert predicted is not None
    assert predicted.low < 1 / (1 - 0.4 * 0.75) < predicted.high
    assert after.suggestions[1].predicted_speedup.high == pytest.approx((1 + TRIAL_ERROR) / 0.6)  # type: ignore[union-attr]


def test_copies_that_are_pinned_and_beside_the_work_need_fewer_bytes() -> None:
    finding = of("h2d.pageable_or_serial", gpu(knobs={"h2d_stream": True}, h2d_ratio=0.3))
    assert (finding.state, finding.note, finding.suggestions) == ("fires", True, ())


def test_launching_suggests_graphs_and_no_more_than_the_gpus_own_time_promises() -> None:
    finding = of("host.launch_bound", gpu(**LAUNCHING))
    assert [suggestion.changes["torch_compile"] for suggestion in finding.suggestions] == [
        "default",
        "reduce-overhead",
    ], "graphs keep memory"
    suggestion = finding.suggestions[0]
    assert suggestion.predicted_speedup is not None
    assert suggestion.predicted_speedup.high == pytest.approx((1 + TRIAL_ERROR) / (1 - 0.95 * 0.6))
    assert wanted_probes([of("host.launch_bound", gpu(without=("probe.issue_s",)))]) == ["launch"]
    assert (
        of(
            "host.launch_bound", gpu(**LAUNCHING, knobs={"torch_compile": "reduce-overhead"})
        ).suggestions
        == ()
    )
    accumulating = gpu(**LAUNCHING, knobs={"gradient_accumulation_steps": 4})
    assert [
        suggestion.changes for suggestion in of("host.launch_bound", accumulating).suggestions
    ] == [{"torch_compile": "default"}], "graphs would lose gradients"


def test_a_stall_in_the_copy_of_a_batch_can_be_had_without() -> None:
    finding = of("host.sync_stall", gpu(**STALLED, knobs={"non_blocking": False}))
    assert finding.recoverable_ratio == pytest.approx((0.3 - 0.005) * 2 / 3), (
        "0.5 % of the step is logging's"
    )
    assert finding.suggestions[0].changes == {"non_blocking": True}
    assert of("host.sync_stall", gpu(**STALLED)).suggestions == ()
    assert wanted_probes([of("host.sync_stall", gpu(without=("probe.sync_gaps_s",)))]) == [
        "sync_gaps"
    ]


def test_an_exchange_no_faster_than_pcie_between_gpus_with_nvlinks() -> None:
    finding = of("comm.slow_link", gpu(knobs=DDP, **JOINED))
    assert (finding.state, finding.confidence) == ("fires", "high")
    for healthy in (
        {"link__nvlink_joined": 0.0},
        {"comm__bus_bytes_per_s": 150e9},  # pieces of 25 MB do not reach all of it
        {"comm__bytes_per_step": 1e6},
    ):
        assert of("comm.slow_link", gpu(knobs=DDP, **{**JOINED, **healthy})).state == "clear"
    assert of("comm.slow_link", gpu(("comm.bus_bytes_per_s",), DDP, **JOINED)).missing == (
        "comm.bus_bytes_per_s",
    )
    assert of("comm.slow_link", gpu(("link.nvlink_joined",), DDP, **JOINED)).state == "cant_tell"


def test_a_leak_says_when_memory_is_full() -> None:
    finding = of("mem.leak_gpu", gpu(**LEAK))
    assert "33 min" in finding.summary
    assert (finding.resource, finding.note) == ("memory", False)
    assert of("mem.leak_gpu", gpu(**{**LEAK, "memory__growth_bytes_per_s": 1e3})).note  # in weeks


@pytest.mark.parametrize("eager", [True, False])
def test_a_gpu_that_waits_for_the_host_while_requests_run(eager: bool) -> None:
    idle = server({"enforce_eager": eager}, hw__busy_ratio=0.5)
    finding = of("serve.host_bound", idle)
    assert finding.state == "fires"
    assert [one.changes for one in finding.suggestions] == (
        [{"enforce_eager": False}] if eager else []
    )


def test_the_embedded_server_waits_for_the_host_and_has_no_setting_against_that() -> None:
    finding = of(
        "serve.host_bound",
        server({"server": "embedded", "enforce_eager": False}, hw__busy_ratio=0.3),
    )
    assert finding.state == "fires" and finding.suggestions == ()
    assert (
        "the GPU works only 30 % of the time. The embedded server launches every kernel alone"
        in finding.summary
    )


@pytest.mark.parametrize(
    ("knobs", "changes"),
    [
        ({}, {"server.requests_running": 0.4}),
        ({}, {"server.frontend_cpu_ratio": 0.95}),
        ({}, {"mbu_ratio": 0.7}),
        ({}, {"client.request_rate": 4.0, "server.requests_running": 2.0}),
        ({"server": "embedded"}, {"mbu_ratio": 0.7}),
    ],
)
def test_a_gpu_that_is_idle_for_other_reasons(knobs: Knobs, changes: dict[str, float]) -> None:
    idle = {
        "hw__busy_ratio": 0.3,
        **{name.replace(".", "__"): value for name, value in changes.items()},
    }
    assert of("serve.host_bound", server({"enforce_eager": True, **knobs}, **idle)).state == "clear"


def test_tensor_parallelism_over_pcie() -> None:
    two: Knobs = {"tensor_parallel_size": 2}
    apart = {
        "link__nvlink_joined": 0.0,
        "link__pcie_rx_bytes_per_s": 45e9,
        "link__pcie_tx_bytes_per_s": 44e9,
    }
    small = {"server__weight_bytes": 16e9, "hw__memory_bytes": 140e9}
    finding = of("serve.tp_over_pcie", server(two, **apart, **small))
    assert (finding.state, finding.suggestions[0].changes) == ("fires", {"tensor_parallel_size": 1})
    for kept in (
        {"server__weight_bytes": 130e9},
        {"link__pcie_rx_bytes_per_s": 20e9, "link__pcie_tx_bytes_per_s": 20e9},
    ):
        assert of("serve.tp_over_pcie", server(two, **{**apart, **small, **kept})).suggestions == ()
    assert (
        of("serve.tp_over_pcie", server(two, **{**apart, "link__nvlink_joined": 1.0})).state
        == "clear"
    )
    assert of("serve.tp_over_pcie", server(two)).missing == ("link.nvlink_joined",)


def test_hardware_findings_need_two_looks_and_suggest_no_knob() -> None:
    steadied = Hysteresis()
    seen = [
        next(f for f in steadied.update(evaluate(gpu(**HOT))) if f.rule == "hw.thermal")
        for _ in range(2)
    ]
    assert [finding.state for finding in seen] == ["cant_tell", "fires"]
    assert seen[1].suggestions == ()
    assert [rule.id for rule in all_rules() if rule.subject == "hardware"] == [
        *sorted(rule for rule in NEW if rule.startswith("hw.")),
        "link.pcie_degraded",
    ]


def test_suggestions_name_real_knobs_and_allowed_values() -> None:
    cases = [
        gpu(**LAUNCHING),
        gpu(knobs={"pin_memory": False, "non_blocking": False}, h2d_ratio=0.4),
    ]
    for a_case in cases:
        for suggestion in [
            one
            for finding in evaluate(a_case)
            if finding.rule in NEW
            for one in finding.suggestions
        ]:
            assert all(
                value in CATALOGUE[name].choices or not CATALOGUE[name].choices
                for name, value in suggestion.changes.items()
            )


def test_growth_that_keeps_on_and_growth_that_settles() -> None:
    times = [float(t) for t in range(100)]
    leak = [1e9 + 5e6 * t + (t % 3) * 1e6 for t in times]
    assert 4.5e6 < steady_growth(times, leak) < 5.2e6
    jumped = [1e9 if t < 50 else 2e9 for t in times]
    # of varied lengths, ever more rarely a longer one
    records = [1e9 + 1e8 * (t + 1) ** 0.25 for t in times]
    flat = [1e9] * 100
    assert [steady_growth(times, values) for values in (jumped, records, flat)] == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="too few"):
        steady_growth(times[:10], leak[:10])
