"""`--log-to`: the real command line, the real libraries, their files, and a receiver on loopback.
The values are those of the snapshot."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuconsole.cli.files import read_snapshot
from gpuconsole.report.trackers.readings import summary_point

pytest.importorskip("tensorboard")
pytest.importorskip("opentelemetry.sdk")
pytestmark = pytest.mark.xdist_group("trackers")


class Receiver:
    """An OTLP receiver. `metrics`: the last value of each metric without device; `events`: names of
    spans and their attributes."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        self.metrics: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.events: list[tuple[str, str]] = []
        self.facts: dict[str, str] = {}
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = (
                    gzip.decompress(body)
                    if self.headers.get("Content-Encoding") == "gzip"
                    else body
                )
                if self.path.endswith("/metrics"):
                    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                        receiver.facts |= {
                            fact.key: fact.value.string_value
                            for fact in resource.resource.attributes
                        }
                        for metric in (
                            metric for scope in resource.scope_metrics for metric in scope.metrics
                        ):
                            receiver.metrics[metric.name] = metric.gauge.data_points[-1].as_double
                            receiver.counts[metric.name] = receiver.counts.get(metric.name, 0) + 1
                else:
                    for span in (
                        ExportTraceServiceRequest.FromString(body)
                        .resource_spans[0]
                        .scope_spans[0]
                        .spans
                    ):
                        attributes = {one.key: one.value.string_value for one in span.attributes}
                        receiver.events.append((span.name, attributes["gpuconsole.name"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "file:./mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        **environment,
    }
    command = (sys.executable, "-m", "gpuconsole", "run", *words)
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def tensorboard_scalars(folder: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    scalars: dict[str, list[float]] = {}
    for event in EventFileLoader(str(next(folder.glob("events.*")))).Load():
        for value in event.summary.value:
            array = make_ndarray(value.tensor)
            if array.dtype.kind == "f":
                scalars.setdefault(value.tag, []).append(float(array))
    return scalars


def leveldb_records(path: Path) -> Iterator[bytes]:
    """The records of a file of Weights & Biases: the log format of LevelDB (blocks of 32 KiB, parts
    with a head of 7 bytes), after 7 bytes of its own."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = (1 << 15) - at % (1 << 15)
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def wandb_file(path: Path) -> tuple[dict[str, float], int, int]:
    """The last value of each name, the number of points with a throughput, and that of
    artifacts."""
    from wandb.proto.wandb_internal_pb2 import Record

    values: dict[str, float] = {}
    points = artifacts = 0
    for data in leveldb_records(path):
        record = Record.FromString(data)
        for item in (*record.summary.update, *record.history.item):
            name = item.key or ".".join(item.nested_key)
            value = json.loads(item.value_json)
            if isinstance(value, (int, float)):
                values[name] = value
        points += any(
            "workload.tokens_per_s" in (item.key, *item.nested_key) for item in record.history.item
        )
        artifacts += record.HasField("artifact") or record.request.HasField("log_artifact")
    return values, points, artifacts


class Logged(NamedTuple):
    """A run that was copied to all trackers: its folder, the figures of its snapshot by name, the
    rules that fire at the end, and what the receiver got."""

    folder: Path
    expected: dict[str, float]
    firing: set[str]
    receiver: Receiver


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("logged")
    with receiving() as receiver:
        words = (
            "tiny-batch",
            "--headless",
            "--device",
            "cpu",
            "--duration",
            "8",
            "--try",
            "batch_size=4",
            "--snapshot",
            "s.json",
        )
        trackers = ("tensorboard=tb", "otlp", "mlflow", "wandb")
        options = [word for tracker in trackers for word in ("--log-to", tracker)]
        done = run(folder, *words, *options, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    assert done.returncode == 0, done.stderr
    assert "--log-to" not in done.stderr
    snapshot = read_snapshot(folder / "s.json")
    expected = {
        reading.name: reading.value for reading in summary_point(snapshot, 0.0, 0.0).readings
    }
    assert {"summary.tokens_per_s", "summary.phase.forward", "summary.mfu_ratio"} <= expected.keys()
    firing = {finding.rule for finding in snapshot.runs[-1].findings if finding.state == "fires"}
    return Logged(folder, expected, firing, receiver)


@pytest.mark.slow
def test_tensorboard_and_otlp_hold_the_values_of_the_snapshot(logged: Logged) -> None:
    expected, receiver, scalars = (
        logged.expected,
        logged.receiver,
        tensorboard_scalars(logged.folder / "tb"),
    )
    # TensorBoard keeps 32 bits
    assert {name: scalars[name][-1] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert {name: receiver.metrics[name] for name in expected} == pytest.approx(expected)
    assert (
        len(scalars["workload.tokens_per_s"]) >= 4
        and len(scalars["phase.forward"]) >= 4
        and receiver.counts["workload.tokens_per_s"] >= 4
    )
    assert (
        receiver.facts["setting.batch_size"] == "1"
        and receiver.facts["service.name"] == "gpuconsole"
    )
    assert {*(("finding", rule) for rule in logged.firing), ("trial", "batch_size 4")} <= set(
        receiver.events
    )
    assert "gpuconsole" in (logged.folder / "tb" / "report.html").read_text()


@pytest.mark.slow
def test_mlflow_holds_the_values_of_the_snapshot(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logged.folder)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient("file:./mlruns")
    experiment = client.get_experiment_by_name("gpuconsole")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    assert {name: kept.data.metrics[name] for name in logged.expected} == pytest.approx(
        logged.expected
    )
    assert (
        kept.data.params["setting.batch_size"] == "1"
        and {f"finding.{rule}" for rule in logged.firing} <= kept.data.tags.keys()
    )
    assert kept.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(kept.info.run_id)] == ["report.html"]
    assert len(client.get_metric_history(kept.info.run_id, "workload.tokens_per_s")) >= 3


@pytest.mark.slow
def test_wandb_offline_holds_the_values_of_the_snapshot(logged: Logged) -> None:
    values, points, artifacts = wandb_file(next(logged.folder.glob("wandb/offline-run-*/*.wandb")))
    assert {name: values[name] for name in logged.expected} == pytest.approx(logged.expected)
    assert points >= 3 and artifacts


@pytest.mark.slow
def test_a_receiver_that_hangs_changes_nothing_of_the_job_and_is_named(tmp_path: Path) -> None:
    import socket

    (tmp_path / "train.py").write_text("print('trained')\n")
    # it accepts connections, and never answers
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        begun = time.monotonic()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        words = (
            "--headless",
            "--snapshot",
            "s.json",
            "--log-to",
            "otlp",
            "--",
            sys.executable,
            "train.py",
        )
        done = run(tmp_path, *words, OTEL_EXPORTER_OTLP_ENDPOINT=url)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "--log-to otlp: " in done.stderr and "points were not delivered" in done.stderr
    assert time.monotonic() - begun < 40


def test_bad_usage_names_what_is_allowed(tmp_path: Path) -> None:
    for tracker in ("comet", "same-run"):
        done = run(tmp_path, "tiny-batch", "--headless", "--log-to", tracker)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert done.stderr.strip().endswith(
            f"{tracker}: allowed are tensorboard[=FOLDER], wandb, mlflow, otlp (see gpuconsole run"
            " --help)"
        )
