"""Situations of a session: fixed events, folded by the session's own code, at a fixed time."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from gpuconsole.experiments.statistics import BASELINE, CHANGED
from gpuconsole.model.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.finding import Evidence, Finding, Interval, Signal, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.serving import Request
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.api import Playback, View
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import bucketed, make_view, points
from gpuconsole.wire.events import (
    AnyEvent,
    Devices,
    EnvironmentKnown,
    Found,
    Hello,
    Note,
    Progress,
    RankJoined,
    Requests,
    RunClosed,
    RunOpened,
    Sample,
    ServerState,
    SourceState,
    Started,
    Steps,
    TrialUpdate,
    TuningUpdate,
    Unavailable,
)
from tests.tui.fake_session import FakeSession, gpu_view

HOST = Device("cpu", "AMD EPYC 9654 96-Core Processor", 16 << 30)
GPT: Knobs = {
    "batch_size": 8,
    "seq_len": 256,
    "precision": "bf16",
    "num_workers": 4,
    "log_every": 20,
    "optim": "adamw",
}
LOADER: Knobs = {"batch_size": 8, "precision": "fp32", "num_workers": 0, "storage_latency_ms": 2.0}
CHAT: Knobs = {"request_rate": 8.0, "max_num_seqs": 32, "max_num_batched_tokens": 2048}
BALANCED = {
    "data_wait": 0.02,
    "h2d": 0.01,
    "forward": 0.27,
    "loss": 0.04,
    "backward": 0.54,
    "optimizer": 0.09,
    "other": 0.03,
}
WAITING = {"data_wait": 0.61, "forward": 0.14, "backward": 0.22, "optimizer": 0.02, "other": 0.01}


def gpu(number: int) -> Device:
    peaks = Peaks(bf16_flops_per_s=989e12, memory_bytes_per_s=4.8e12, source="datasheet")
    return Device(
        f"gpu:{number}", "NVIDIA H200", 150_754_820_096, f"GPU-{number:04}", peaks, "5.0 x16", ""
    )


ERRORS = Finding(
    "hw.errors", "fires", "The device reports errors", 0.0, "high",
    "2 uncorrected ECC errors since the start of the session",
    (Evidence("ecc_uncorrected", 2.0, "", 0.0, "nvml"),),
)  # fmt: skip
STARVED = Finding(
    "input.too_few_workers",
    "fires",
    "Too few DataLoader workers",
    0.61,
    "high",
    "The step waits 89 of 146 ms for data; the DataLoader reads 1.9x as fast with one more worker.",
    (Evidence("data_wait_ratio", 0.61, "ratio", 0.1, "step breakdown, n=400"),),
    (
        Suggestion(
            {"num_workers": 4},
            Interval(2.1, 2.5),
            "Workers load batches beside the step.",
            "DataLoader(data, num_workers=4)",
        ),
        Suggestion({"num_workers": 2}, Interval(1.6, 1.9), "Half of it.", ""),
    ),
)
FP32 = Finding(
    "gpu.fp32_no_tensor_core",
    "fires",
    "fp32 products on a device with tensor cores",
    0.22,
    "medium",
    "Forward and backward take 53 of 146 ms in fp32.",
    (),
    (
        Suggestion(
            {"precision": "bf16"}, Interval(1.1, 1.25), "Tensor cores multiply bf16 faster.", ""
        ),
    ),
)
HEALTHY = Finding(
    "gpu.compute_bound_healthy",
    "fires",
    "Compute-bound and healthy",
    0.0,
    "high",
    "MFU 52 %; no bottleneck found",
    note=True,
)
CLEAR = [
    Finding(rule, "clear", title, summary=summary)
    for rule, title, summary in (
        (
            "input.jitter",
            "No slow samples stall the DataLoader",
            "the slowest batch takes 1.2x the median",
        ),
        ("host.logging_io", "Logging takes little time", "logging takes 0.3 % of a step"),
        ("host.checkpoint_stall", "Checkpoints take little time", "no checkpoint was saved"),
        (
            "host.cpu_contention",
            "The training thread has a CPU core",
            "it waited for a core 0.2 % of the time",
        ),
        (
            "host.sync_stall",
            "Synchronisations cost little GPU time",
            "0.4 synchronisations per step",
        ),
        ("gpu.small_batch", "The batch is large enough", "twice the batch takes 1.9x the time"),
        (
            "gpu.optimizer_unfused",
            "The optimizer costs no avoidable time",
            "the optimizer takes 2 % of a step",
        ),
        ("mem.near_capacity", "Memory has room", "56.8 of 140 GiB are in use"),
        ("mem.leak_gpu", "No GPU memory leak", "memory grew by 0 bytes per step"),
        ("hw.thermal", "Heat does not lower the GPU clock", "62 °C"),
        (
            "hw.power",
            "The power limit costs little GPU clock",
            "the clock was 0.6 % below its limit",
        ),
    )
]
SERVING_CLEAR = [
    Finding(rule, "clear", title, summary=summary)
    for rule, title, summary in (
        (
            "serve.client_bound",
            "The load generator is fast enough",
            "it waited for a CPU 0.4 % of the time",
        ),
        (
            "serve.over_capacity",
            "The server keeps up with the requests",
            "2 requests wait, and their number does not grow",
        ),
        (
            "serve.kv_bound",
            "The KV cache is large enough",
            "the KV cache is 37 % full, no preemptions",
        ),
        (
            "serve.sequence_cap",
            "Enough sequence slots (max_num_seqs)",
            "11 of 32 slots are in use",
        ),
        (
            "serve.token_budget",
            "Prompts are not split into too many pieces",
            "a prompt takes 1 iteration",
        ),
        ("serve.prefill_bound", "Prefill is not the bottleneck", "prefill takes 4 % of a request"),
        (
            "serve.prefill_stalls_decode",
            "Prompts do not delay the tokens of other requests",
            "ITL p99 is 1.0x its median",
        ),
        (
            "serve.prefix_reuse_missed",
            "No shared prompt prefix is computed repeatedly",
            "prompts share 0 % of their tokens",
        ),
        ("serve.frontend_cpu", "The API server process has enough CPU", "it uses 21 % of a core"),
        (
            "serve.long_context_cliff",
            "Context length costs little time",
            "TPOT grows by 3 % with the context",
        ),
        ("hw.thermal", "Heat does not lower the GPU clock", "55 °C"),
    )
]
UNKNOWN = [Finding("comm.exposed", "cant_tell", "Exposed communication", missing=("comm_ratio",))]


class Script:
    """Events in the order of time. `t` is the end of what has happened so far."""

    def __init__(self, gpus: int = 1) -> None:
        self.t = self.runq_s = 0.0
        self.asked: Knobs = {}
        self.probing = ""
        self.playback: Playback | None = None
        self.devices = [*map(gpu, range(gpus)), HOST]
        self.events: list[AnyEvent] = [
            Hello(0.0, "runtime", 1, "x", 1.8e9),
            Devices(0.0, self.devices, "580.159.03"),
            EnvironmentKnown(
                0.0,
                Environment(host="gpubox-07", cores=96, driver="580.159.03", devices=self.devices),
            ),
            SourceState(0.0, "nvml", 1.0),
        ]
        for n in range(gpus):
            self.events.append(
                Unavailable(
                    0.0,
                    f"gpu:{n}",
                    {f"gpu.nvlink_{way}_bytes_per_s": "no NVLink" for way in ("rx", "tx")},
                )
            )

    def second(self, busy: float) -> None:
        """One more second, with a sample of each device."""
        self.t += 1.0
        wave = 1 + 0.1 * math.sin(self.t / 3)
        for n, device in enumerate(self.devices[:-1]):
            part = busy * wave * (1 if n == 0 else 0.05)
            self.events.append(
                Sample(
                    self.t,
                    device.id,
                    {
                        "gpu.sm_active_ratio": 0.8 * part,
                        "gpu.tensor_active_ratio": 0.35 * part,
                        "gpu.dram_active_ratio": 0.4 * part,
                        "gpu.hbm_bytes_per_s": 1.9e12 * part,
                        "gpu.hbm_used_bytes": 61e9 if n == 0 else 1e9,
                        "gpu.hbm_total_bytes": 150.7e9,
                        "gpu.pcie_rx_bytes_per_s": 11e9 * part,
                        "gpu.pcie_tx_bytes_per_s": 0.3e9 * part,
                        "gpu.power_w": 120 + 500 * part,
                        "gpu.power_limit_w": 700.0,
                        "gpu.temperature_c": 40 + 20 * part,
                        "gpu.sm_clock_hz": 1.98e9,
                        "gpu.utilization_ratio": 0.9 * part,
                    },
                )
            )
        self.events.append(
            Sample(
                self.t,
                "cpu",
                {
                    "host.cores_busy": 3.2,
                    "host.run_queue_delay_ratio": 0.02,
                    "host.memory_used_bytes": 5.1e9,
                    "host.memory_total_bytes": 17e9,
                },
            )
        )
        self.events.append(Sample(self.t, "console", {"console.cpu_ratio": 0.011}))

    def start(
        self,
        run: str,
        scenario: str,
        knobs: Knobs,
        changes: Knobs | None = None,
        serves: bool = False,
    ) -> None:
        workload = (
            "inference.serving"
            if serves
            else "training.gpt"
            if "seq_len" in knobs
            else "training.vision"
        )
        self.events.append(
            RunOpened(self.t, run, scenario, workload, knobs, "gpu:0", changes or {})
        )
        if not serves:
            self.events.append(RankJoined(self.t, 0, "gpubox-07", 4100, leads=True))
        facts = (
            {"max_num_seqs": 32.0} if serves else {"flops_per_sample": 2e12, "parameters": 124e6}
        )
        self.events.append(Started(self.t, knobs, facts))

    def train(
        self,
        seconds: int,
        step_s: float,
        phases: dict[str, float],
        tokens: int = 2048,
        arm: int = 0,
    ) -> None:
        index = sum(len(event.steps) for event in self.events if isinstance(event, Steps))
        for _ in range(seconds):
            count = round(1 / step_s)
            steps = []
            for n in range(count):
                lasts = step_s * (
                    1 + 0.04 * math.sin(index + n) + (0.3 if (index + n) % 67 == 66 else 0)
                )
                parts = tuple(lasts * phases.get(name, 0.0) for name in PHASES)
                steps.append(
                    Step(index + n, self.t + n * step_s, lasts, 8, tokens, parts, loss=2.0, arm=arm)
                )
            index += count
            self.second(1.0)
            self.events.append(
                Steps(
                    self.t,
                    steps,
                    0.9 * self.t,
                    0.01,
                    0.001 * self.t,
                    6.1e10,
                    counters={"work.steps": float(index)},
                )
            )

    def serve(self, seconds: int, runq: float = 0.004) -> None:
        """`runq`: the share of the time in which the load generator waits for a CPU."""
        done = 0
        for _ in range(seconds):
            begun = self.t
            self.runq_s += runq
            self.second(0.7)
            requests = [
                Request(
                    begun + n / 8,
                    0.002,
                    0.11 + 0.01 * (n % 3),
                    1.4,
                    120,
                    64,
                    (0.02,) * 63,
                    (1.0,) * 63,
                )
                for n in range(8)
            ]
            done += 8
            totals = {"generation_tokens": 64.0 * done, "requests": float(done)}
            for name, mean in (("queue_s", 0.05), ("prefill_s", 0.06), ("decode_s", 1.25)):
                totals |= {f"{name}_sum": mean * done, f"{name}_count": float(done)}
            self.events += [
                Requests(self.t, requests, active=11, runq_s=self.runq_s),
                ServerState(
                    self.t,
                    {
                        "requests_running": 11.0,
                        "requests_waiting": 2.0,
                        "kv_cache_usage_ratio": 0.37,
                    },
                    totals,
                ),
                Steps(self.t, [Step(done, self.t, 1.0, 8, 512, ())], 0.0, 0.0, 0.0, 0.0),
            ]

    def outage(self, seconds: int, why: str) -> None:
        """The server does not answer, and all requests fail."""
        since = self.t
        for _ in range(seconds):
            self.second(0.0)
            failed = [Request(self.t, 0.0, None, None, 120, 0, error=f"cannot connect: {why}")] * 4
            self.events += [
                Steps(self.t, [Step(0, self.t, 1.0, 0, 0, ())], 0.0, 0.0, 0.0, 0.0),
                Requests(self.t, failed, active=8, runq_s=self.runq_s, down=why, down_since=since),
            ]

    def find(self, run: str, *findings: Finding, clear: list[Finding] = CLEAR) -> None:
        self.events.append(Found(self.t, run, [*findings, *clear, *UNKNOWN]))

    def trial(
        self,
        number: str,
        run: str,
        changes: Knobs,
        predicted: Interval,
        found: Speedup | None,
        *,
        state: str = "done",
        kept: bool = False,
    ) -> None:
        verdict = (
            None
            if state == "running"
            else "undecided"
            if state == "cancelled"
            else "win"
            if kept
            else "worse"
        )
        begun = Trial(number, run, changes, "running", predicted=predicted)
        self.events.append(TrialUpdate(self.t - 9.0, begun))
        self.events.append(
            TrialUpdate(
                self.t,
                Trial(
                    number,
                    run,
                    changes,
                    state,
                    found,
                    None,
                    12,
                    predicted,
                    verdict,
                    kept,
                    elapsed_s=9.0,
                    limit_s=20.0,
                ),
            )  # type: ignore[arg-type]
        )

    def end(self, run: str, state: str, error: str | None = None) -> None:
        self.events.append(RunClosed(self.t, run, state, error))  # type: ignore[arg-type]


def healthy() -> Script:
    script = Script()
    script.start("1", "train-gpt", GPT)
    script.train(60, 0.146, BALANCED)
    script.find("1")
    return script


def unexplained() -> Script:
    """The step waits for data, and the rules about input lack a signal."""
    script = Script()
    script.start("1", "train-gpt", {**GPT, **LOADER})
    script.train(60, 0.146, WAITING)
    signals = {
        f"{phase}_ratio": Signal(share, "ratio", "step breakdown")
        for phase, share in WAITING.items()
    }
    rules = {
        "input.too_few_workers": STARVED.title,
        "input.slow_storage": "The loader waits for storage",
    }
    lacking = [
        Finding(rule, "cant_tell", title, missing=("probe.loader_cpu_ratio",))
        for rule, title in rules.items()
    ]
    script.events.append(Found(script.t, "1", [*lacking, *CLEAR], signals))
    return script


def finding() -> Script:
    """Hardware errors come first although no time can be recovered from them."""
    script = Script()
    script.start("1", "data-starved", {**GPT, **LOADER})
    script.train(60, 0.146, WAITING)
    script.find("1", ERRORS, STARVED, FP32)
    return script


def trial() -> Script:
    script = finding()
    for arm in (BASELINE, CHANGED, BASELINE):
        script.train(3, *((0.065, BALANCED) if arm == CHANGED else (0.146, WAITING)), arm=arm)
    script.trial(
        "1", "1", {"num_workers": 4}, Interval(2.1, 2.5), Speedup(2.2, 1.9, 2.6), state="running"
    )
    return script


def trial_finished() -> Script:
    script = finding()
    script.trial("1", "1", {"precision": "bf16"}, Interval(1.1, 1.25), Speedup(0.95, 0.93, 0.97))
    script.train(20, 0.146, WAITING)
    script.trial(
        "2", "1", {"num_workers": 4}, Interval(2.1, 2.5), Speedup(2.24, 2.1, 2.4), kept=True
    )
    script.end("1", "stopped")
    script.start("2", "data-starved", {**GPT, **LOADER, "num_workers": 4}, {"num_workers": 4})
    script.train(30, 0.065, BALANCED)
    script.find("2", FP32)
    return script


def won() -> Script:
    """The moment of proof: the run with the change has no step yet."""
    script = finding()
    script.trial(
        "1", "1", {"num_workers": 4}, Interval(2.1, 2.5), Speedup(2.24, 2.1, 2.4), kept=True
    )
    script.end("1", "stopped")
    script.start("2", "data-starved", {**GPT, **LOADER, "num_workers": 4}, {"num_workers": 4})
    return script


def kept() -> Script:
    """Two seconds after a win: no metric of the run with the change is known yet."""
    script = won()
    script.train(2, 0.065, BALANCED)
    return script


def well() -> Script:
    """A kept change, and nothing left to recover: the run is healthy, and one more change could be
    tried."""
    script = kept()
    script.train(28, 0.065, BALANCED)
    script.find("2", HEALTHY, msgspec.structs.replace(FP32, recoverable_ratio=0.0, note=True))
    return script


def cancelled() -> Script:
    """The trial was cancelled, and another cause is on trial: a tuning session goes on."""
    script = finding()
    script.trial(
        "1", "1", {"num_workers": 4}, Interval(2.1, 2.5), Speedup(2.2, 1.9, 2.6), state="cancelled"
    )
    script.train(20, 0.146, WAITING)
    script.trial(
        "2",
        "1",
        {"precision": "bf16"},
        Interval(1.1, 1.25),
        Speedup(1.12, 1.02, 1.2),
        state="running",
    )
    trials = [event.trial for event in script.events if isinstance(event, TrialUpdate)]
    made = Certificate(
        scenario="data-starved", device="gpu:0", start=LOADER, end=LOADER,
        attempts=[Attempt("input.too_few_workers", LOADER, trials[1], "", 20.0)], elapsed_s=41.0,
    )  # fmt: skip
    script.events.append(TuningUpdate(script.t, Tuning(made, 300.0, True)))
    return script


def starting() -> Script:
    script = Script()
    for _ in range(4):
        script.second(0.0)
    knobs: Knobs = {**GPT, **LOADER}
    script.events.append(
        RunOpened(script.t, "1", "data-starved", "training.gpt", knobs, "gpu:0", {})
    )
    script.events.append(Progress(script.t, "building the model", "124 M parameters"))
    script.second(0.0)
    return script


def serving() -> Script:
    script = Script()
    script.start("1", "serve-chat", CHAT, serves=True)
    script.serve(60)
    script.find("1", clear=SERVING_CLEAR)
    return script


def server_down() -> Script:
    """The server died twelve seconds ago. Rules have no signals while it does not answer."""
    script = Script()
    script.start("1", "serve-chat", CHAT, serves=True)
    script.serve(48)
    script.outage(12, "connection refused")
    script.events.append(
        Found(
            script.t,
            "1",
            [
                Finding(
                    one.rule, "cant_tell", one.title, missing=("server.queue_s", "server.running")
                )
                for one in SERVING_CLEAR
            ],
        )
    )
    return script


def degraded() -> Script:
    """The client lacks CPU time."""
    script = Script()
    script.start("1", "serve-chat", CHAT, serves=True)
    script.serve(60, runq=0.38)
    script.find("1", clear=SERVING_CLEAR)
    return script


def eight_gpus() -> Script:
    script = Script(gpus=8)
    script.start("1", "train-gpt", GPT)
    script.train(60, 0.146, BALANCED)
    script.find("1")
    return script


def failed() -> Script:
    """The change was kept, and the run with it fails: the verdict of the run is that it failed."""
    script = Script()
    script.start("1", "train-gpt", GPT)
    script.train(30, 0.146, BALANCED)
    script.trial(
        "1", "1", {"batch_size": 32}, Interval(1.1, 1.3), Speedup(1.21, 1.18, 1.24), kept=True
    )
    script.end("1", "stopped")
    script.start("2", "train-gpt", {**GPT, "batch_size": 32}, {"batch_size": 32})
    script.train(10, 0.48, BALANCED, 8192)
    script.end(
        "2", "failed", "out of memory at batch_size 32: 139 GiB in use, 2.1 GiB more requested"
    )
    script.events.append(Note(script.t, "the worker ended with exit code 1", "warning"))
    return script


def second_scenario() -> Script:
    """Images after text: another unit, and the trial of the first scenario is not news any more."""
    script = Script()
    script.start("1", "train-gpt", GPT)
    script.train(30, 0.146, BALANCED)
    script.trial(
        "1", "1", {"optim": "adamw_fused"}, Interval(1.1, 1.3), Speedup(1.21, 1.18, 1.24), kept=True
    )
    script.end("1", "stopped")
    script.start("2", "train-gpt", {**GPT, "optim": "adamw_fused"}, {"optim": "adamw_fused"})
    script.train(20, 0.121, BALANCED)
    script.end("2", "stopped")
    script.start("3", "data-starved", LOADER)
    script.train(30, 0.146, WAITING, tokens=0)
    script.find("3", STARVED)
    return script


def requested() -> Script:
    """A trial was asked for while a probe runs."""
    script = finding()
    script.asked, script.probing = {"num_workers": 4}, "batch_elasticity"
    return script


def replayed() -> Script:
    """A recording, paused in the middle of a trial."""
    script = trial()
    script.playback = Playback(script.t, 2 * script.t, paused=True)
    return script


SITUATIONS: dict[str, Callable[[], Script]] = {
    "healthy": healthy,
    "unexplained": unexplained,
    "finding": finding,
    "requested": requested,
    "trial": trial,
    "trial-finished": trial_finished,
    "won": won,
    "kept": kept,
    "well": well,
    "tuning": cancelled,
    "starting": starting,
    "serving": serving,
    "server-down": server_down,
    "degraded": degraded,
    "eight-gpus": eight_gpus,
    "failed": failed,
    "second-scenario": second_scenario,
    "replay": replayed,
}
PRESSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "editing": ("finding", ("S", "enter", "backspace", *"av", "enter")),
    "applied": ("finding", ("S", "enter", *"16", "enter", "a")),
    "message": ("finding", ("e",)),
}
"""Pictures after keys: the situation and the keys. A value that is not allowed, a change without a
trial, a message above the keys."""


class FoldedSession(FakeSession):
    """A session that has received the events of a script, and stands still at their end."""

    def __init__(self, script: Script) -> None:
        super().__init__(gpu_view())
        self._state = SessionState()
        for event in script.events:
            self._state.apply(event)
        self._now, self._asked, self._probing = script.t, script.asked, script.probing
        self._playback = script.playback
        self.shown = self._make()

    def _make(self) -> View:
        made = make_view(
            self._state, now=self._now, environment=self._state.environment, device="gpu:0",
            probing=self._probing, recording=self._playback is not None, recording_to="",
            ended=False,
        )  # fmt: skip
        return msgspec.structs.replace(made, asked=self._asked, playback=self._playback)

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        return bucketed(self._state, key, self._now, columns, seconds)

    def points(self, key: str) -> tuple[list[float], list[float]]:
        return points(self._state, key)
