"""Dashboard and alerts ask for what is exported, the alerts fire, and a real Prometheus reads the
real exporter."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuconsole.report.prometheus.collector import exported_names
from tests.cli.exporting import Exporter
from tests.conftest import Machine
from tests.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs"
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "offset", "bool"}


def series_in(expression: str) -> set[str]:
    """The series names that a PromQL expression asks for."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|without|on)\s*\([^)]*\)|offset\s+\w+", "", bare)
    found = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w|\s*\()", bare)
    return {name for name in found if name not in WORDS}


def rules() -> Iterator[tuple[str, str]]:
    """(recorded name or "", expression) of every rule, without a YAML parser."""
    for rule in re.split(r"\n\s+- (?=record:|alert:)", (DOCS / "alerts.yml").read_text())[1:]:
        found = re.search(
            r"expr: (?:>\n)?(.*?)(?=\n\s+(?:for|labels|annotations|- )|\n\n|\Z)", rule, re.DOTALL
        )
        assert found
        record = re.match(r"record: (\S+)", rule)
        yield (record[1] if record else "", found[1])


def test_series_are_found_in_expressions() -> None:
    assert series_in(
        'sum by (a) (rate(x_total{b=~"c"}[5m] offset 1h)) / on (d) -y:z or vector(0) > 1'
    ) == {"x_total", "y:z"}


def known_names() -> set[str]:
    return (
        exported_names()
        | {name for name, _ in rules() if name}
        | {"gpuconsole_exporter_process_cpu_seconds_total"}
    )


def test_alerts_ask_only_for_what_is_exported() -> None:
    asked = [series_in(expression) for _, expression in rules()]
    assert len(asked) >= 10 and all(asked)
    assert set().union(*asked) <= known_names() | {"up"}


def test_the_dashboard_asks_only_for_what_is_exported() -> None:
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    asked = [series_in(target["expr"]) for panel in panels for target in panel["targets"]]
    assert len(panels) > 15 and all(asked)
    assert set().union(*asked) <= known_names()
    assert {"gpuconsole_gpu_state", "gpuconsole_gpu_idle_seconds"} <= set().union(*asked)
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for name in ("instance", "device"):
        assert (
            set(re.findall(r"label_values\((\w+)", variables[name]["definition"]))
            <= exported_names()
        )
    assert all(
        target["datasource"]["uid"] == "${datasource}"
        for panel in panels
        for target in panel["targets"]
    )


needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian package prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="prometheus is not installed (Debian package prometheus)"
)


def promtool(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_promtool
def test_promtool_accepts_the_rules_and_they_fire(tmp_path: Path) -> None:
    checked = promtool("check", "rules", str(DOCS / "alerts.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    gpu = 'instance="box:9835",device="gpu:0",model="H200"'
    box = 'instance="box:9835"'

    def series(name: str, values: str, labels: str = gpu) -> dict[str, str]:
        return {"series": f"{name}{{{labels}}}", "values": values}

    def silent(alert: str, at: str) -> dict[str, object]:
        return {"eval_time": at, "alertname": alert, "exp_alerts": []}

    def fires(alert: str, at: str, summary: str, **labels: str) -> dict[str, object]:
        told = {
            "exp_labels": {"instance": "box:9835", **labels},
            "exp_annotations": {"summary": f"box:9835{summary}"},
        }
        return {"eval_time": at, "alertname": alert, "exp_alerts": [told]}

    of_gpu = {"device": "gpu:0", "model": "H200"}
    too_slow = " gpu:0: 100 tokens/s, less than 80 % of the rate of its last day"
    test = {
        "rule_files": [str(DOCS / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    series("gpuconsole_gpu_thermal_time_ratio", "0 0.3x20"),
                    series(
                        "gpuconsole_device_lost",
                        "_ _ 1x20",
                        f'{box},device="gpu:0",reason="off the bus"',
                    ),
                    series("gpuconsole_device_info", "1x9", f'{box},device="gpu:0"'),
                    series("gpuconsole_device_info", "1x40", f'{box},device="gpu:1"'),
                    series(
                        "gpuconsole_gpu_idle_seconds",
                        "0x3 180+60x40",
                        f'{box},device="gpu:0"',
                    ),
                    series(
                        "gpuconsole_gpu_state",
                        "_ _ 1x20",
                        f'{box},device="gpu:0",state="sick"',
                    ),
                    series(
                        "gpuconsole_source_stuck_seconds", "0 0 40+60x20", f'{box},source="nvml"'
                    ),
                    series("gpuconsole_gpu_ecc_uncorrected_total", "2x5 3x20"),
                    series("gpuconsole_gpu_row_remap_failed", "0 1x20"),
                    series("gpuconsole_workload_tokens_per_second", "1000x120 100x30"),
                ],
                "alert_rule_test": [
                    silent("GpuThrottled", "4m"),
                    fires(
                        "GpuThrottled",
                        "7m",
                        " gpu:0: heat or a power brake holds clocks down 30% of the time",
                        severity="warning",
                        **of_gpu,
                    ),
                    silent("GpuLost", "1m"),
                    fires(
                        "GpuLost",
                        "2m",
                        " gpu:0 is lost: off the bus",
                        severity="critical",
                        device="gpu:0",
                        reason="off the bus",
                    ),
                    silent("GpuMissing", "12m"),
                    fires(
                        "GpuMissing",
                        "25m",
                        " shows 1 GPUs, fewer than within the last day",
                        severity="critical",
                    ),
                    silent("GpuHeldIdle", "15m"),
                    fires(
                        "GpuHeldIdle",
                        "22m",
                        " gpu:0: its memory has been held without work for 21m 0s",
                        severity="warning",
                        device="gpu:0",
                    ),
                    silent("GpuSick", "5m"),
                    fires(
                        "GpuSick",
                        "8m",
                        " gpu:0 has a fault: heat, memory, NVLinks, an XID, or readings that fail",
                        severity="warning",
                        device="gpu:0",
                        state="sick",
                    ),
                    silent("GpuEccUncorrected", "5m"),
                    fires(
                        "GpuEccUncorrected",
                        "8m",
                        " gpu:0: uncorrected memory errors; results of this hour may be wrong",
                        severity="critical",
                        **of_gpu,
                    ),
                    silent("GpuRowRemapFailed", "0m"),
                    fires(
                        "GpuRowRemapFailed",
                        "1m",
                        " gpu:0: a memory row could not be replaced; the GPU needs service",
                        severity="critical",
                        **of_gpu,
                    ),
                    silent("GpuconsoleSamplerStuck", "2m"),
                    fires(
                        "GpuconsoleSamplerStuck",
                        "5m",
                        ": nvml has not answered for 3m 40s; no process watches its GPUs",
                        severity="warning",
                        source="nvml",
                    ),
                    silent("ThroughputBelowBaseline", "110m"),
                    fires(
                        "ThroughputBelowBaseline", "149m", too_slow, severity="warning", **of_gpu
                    ),
                    silent("GpuPowerCapped", "20m"),
                    silent("GpuconsoleExporterDown", "20m"),
                ],
            }
        ],
    }
    path = tmp_path / "rules_test.yml"
    path.write_text(json.dumps(test))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
@needs_promtool
def test_prometheus_reads_the_exporter(machine: Machine, tmp_path: Path) -> None:
    script, environment = machine("gpus 2", "gpu * gpm 2 78.5", "gpu 1 power_mw 123456")
    with Exporter(environment).ready() as exporter, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        linted = promtool("check", "metrics", given=exporter.get()[1])
        assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(DOCS / "alerts.yml")],
            "scrape_configs": [
                {"job_name": "gpuconsole", "static_configs": [{"targets": [exporter.address]}]}
            ],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        command = [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
        ]
        with (tmp_path / "log").open("wb") as log:
            server = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
            )
        try:
            power = 'gpuconsole_gpu_power_watts{device="gpu:1",model="NVIDIA H200"}'
            wait_until(
                lambda: query(port, power) == [123.456],
                what=f"the value in Prometheus; {(tmp_path / 'log').read_text()}",
            )
            assert query(port, 'DCGM_FI_PROF_SM_ACTIVE{gpu="0"}') == [0.785]
            assert query(port, "sum(gpuconsole_gpu_power_watts)") == [pytest.approx(350 + 123.456)]
            assert query(port, 'up{job="gpuconsole"}') == [1]
            script.write("gpus 2", "gpu 1 lost 1")
            wait_until(
                lambda: (
                    query(port, 'ALERTS{alertname="GpuLost",alertstate="firing",device="gpu:1"}')
                    == [1]
                ),
                what="the alert",
            )
            assert query(port, power) == []
        finally:
            server.terminate()
            server.wait(20)


def query(port: int, expression: str) -> list[float]:
    """The values that Prometheus has for an expression now; none while it starts."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            answer = json.load(response)
    except OSError:
        return []
    return [float(series["value"][1]) for series in answer["data"]["result"]]
