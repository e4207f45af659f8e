"""`gpuconsole exporter` as Prometheus sees it: the real program over the fake driver, scraped over
a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import re
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuconsole.cli.main import main
from gpuconsole.report.prometheus import server as metrics_server
from gpuconsole.report.prometheus.collector import exported_names
from gpuconsole.session.state import SessionState
from tests.cli.exporting import Exporter
from tests.conftest import Cli, Machine
from tests.fakes.dcgm import FakeDcgm, dcgm_page
from tests.waiting import gone, wait_until

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
GPM = (
    "gpu * gpm 2 78.5",
    "gpu * gpm 3 25",
    "gpu * gpm 5 31",
    "gpu * gpm 10 42",
    "gpu * gpm 20 290",
    "gpu * gpm 21 11500",
)
MIB = 1 << 20


def test_scripted_values_under_both_names_to_the_unit(machine: Machine) -> None:
    script, environment = machine(
        "gpus 2", *GPM, "gpu 1 power_mw 123456", "gpu 1 energy_mj 7654321"
    )
    with Exporter(environment).ready() as exporter:
        expected = {
            "gpuconsole_gpu_sm_active_ratio": 0.785,
            "gpuconsole_gpu_tensor_active_ratio": 0.31,
            "gpuconsole_gpu_hbm_bytes_per_second": 0.42 * 4.8e12,
            "gpuconsole_gpu_hbm_used_bytes": 60e9,
            "gpuconsole_gpu_power_watts": 123.456,
            "gpuconsole_gpu_energy_joules_total": 7654.321,
            "gpuconsole_gpu_temperature_celsius": 61,
            "gpuconsole_gpu_sm_clock_hertz": 1.98e9,
            "gpuconsole_gpu_pcie_rx_bytes_per_second": 11500 * MIB,
            "DCGM_FI_PROF_SM_ACTIVE": 0.785,
            "DCGM_FI_PROF_SM_OCCUPANCY": 0.25,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.31,
            "DCGM_FI_PROF_DRAM_ACTIVE": 0.42,
            "DCGM_FI_PROF_PCIE_TX_BYTES": 290 * MIB,
            "DCGM_FI_DEV_GPU_UTIL": 100,
            "DCGM_FI_DEV_FB_USED": 60e9 / MIB,
            "DCGM_FI_DEV_POWER_USAGE": 123.456,
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 7654321,
            "DCGM_FI_DEV_GPU_TEMP": 61,
            "DCGM_FI_DEV_SM_CLOCK": 1980,
            "DCGM_FI_DEV_MEM_CLOCK": 3201,
        }
        ours = {"device": "gpu:1", "uuid": UUID.format(1), "model": "NVIDIA H200"}
        theirs = {
            "gpu": "1",
            "UUID": UUID.format(1),
            "device": "nvidia1",
            "Hostname": socket.gethostname(),
        }
        for name, value in expected.items():
            labels = theirs if name.startswith("DCGM") else ours
            assert list(exporter.values(name, **labels).values()) == [
                pytest.approx(value, rel=1e-9)
            ], name
        assert exporter.value("gpuconsole_host_memory_total_bytes", "cpu")
        assert exporter.value("gpuconsole_sampler_up") == 1
        script.write("gpus 2", "gpu 1 power_mw 234567")
        wait_until(lambda: exporter.value("gpuconsole_gpu_power_watts", "gpu:1") == 234.567)


def test_both_formats_parse_and_hold_only_listed_names(machine: Machine) -> None:
    _, environment = machine("gpus 1", *GPM)
    with Exporter(environment).ready() as exporter:
        _, text = exporter.get()
        _, openmetrics = exporter.get(headers=OPENMETRICS)
        names = {sample.name for family in parse_text(text) for sample in family.samples}
        assert {
            sample.name for family in parse_openmetrics(openmetrics) for sample in family.samples
        } == names
        own_process = {name for name in names if name.startswith("gpuconsole_exporter_process_")}
        assert "gpuconsole_exporter_process_cpu_seconds_total" in own_process
        assert names - own_process <= exported_names()
        assert "# TYPE gpuconsole_gpu_energy_joules_total counter" in text
        assert "# HELP gpuconsole_gpu_power_watts Board power draw" in text
        assert "Source: nvml." in text
        with urllib.request.urlopen(
            urllib.request.Request(
                f"http://{exporter.address}/metrics", headers={"Accept-Encoding": "gzip"}
            ),
            timeout=10,
        ) as response:
            assert gzip.decompress(response.read()).startswith(b"# HELP")
        status, about = exporter.get("/")
        assert (status, "exporter" in about, "/metrics" in about) == (200, True, True)
        assert exporter.get("/secret")[0] == 404


def test_names_from_outside_cannot_break_a_line(machine: Machine) -> None:
    _, environment = machine(
        "gpus 1", 'gpu 0 name Evil" \\x0a\\x1b[31m\\\\ H200} 1', 'gpu 0 uuid GPU-"\\x0d\\x07x'
    )
    with Exporter(environment).ready() as exporter:
        _, text = exporter.get()
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
        (sample,) = (
            sample
            for family in parse_text(text)
            if family.name == "gpuconsole_gpu_power_watts"
            for sample in family.samples
        )
        assert sample.labels["model"] == 'Evil"  \\x1b[31m\\\\ H200} 1'
        assert sample.labels["uuid"] == 'GPU-"\\x0d\\x07x'


def test_the_token(machine: Machine, tmp_path: Path) -> None:
    _, environment = machine("gpus 1")
    (tmp_path / "token").write_text("s3cret-ü\n", encoding="utf-8")
    (tmp_path / "token").chmod(0o600)
    with Exporter(environment, "--token-file", str(tmp_path / "token")) as exporter:
        right = {"Authorization": "Bearer s3cret-ü".encode().decode("latin-1")}
        for headers in (
            None,
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic s3cret"},
            {"Authorization": "Bearer"},
        ):
            for path in ("/metrics", "/healthz", "/"):
                assert exporter.get(path, headers) == (401, "a bearer token is needed\n")
        wait_until(lambda: "gpuconsole_gpu_power_watts" in exporter.get("/metrics", right)[1])
        assert exporter.get("/healthz", right) == (200, "ok\n")
        assert len(exporter.lines) == 1


def test_an_open_address_without_a_token_warns_in_one_line(machine: Machine) -> None:
    _, environment = machine("gpus 1")
    with Exporter(environment, listen="0.0.0.0:0") as exporter:
        assert [line for line in exporter.lines if "--token-file" in line] == exporter.lines[:1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "9835"], ["--listen 9835", "HOST:PORT"]),
        (["--listen", "127.0.0.1:99999"], ["--listen", "HOST:PORT"]),
        (["--listen", "256.1.1.1:9835"], ["--listen 256.1.1.1:9835"]),
        (["--listen", "192.0.2.1:9835"], ["--listen 192.0.2.1:9835", "assign"]),
        (["--listen", "a..b:9835"], ["--listen a..b:9835"]),
        (["--token-file", "nowhere"], ["--token-file nowhere", "No such file"]),
        (["--token-file", "/dev/null"], ["--token-file /dev/null", "empty"]),
        (["--token-file", "/dev/zero"], ["--token-file /dev/zero", "more than"]),
        (["--dcgm", "localhost:9400"], ["--dcgm localhost:9400", "http://"]),
        (["--interval", "0"], ["--interval"]),
    ],
)
def test_bad_options_are_one_line_and_exit_2(
    options: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["exporter", *options])
    except SystemExit as exit_:  # argparse's own
        code = int(exit_.code or 0)
    told = capsys.readouterr().err
    assert code == 2
    assert all(word in told.splitlines()[-1] for word in words), told


def test_a_port_in_use_is_one_line_and_exit_2(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = cli("exporter", "--listen", address)
    assert done.returncode == 2
    assert done.stderr == f"gpuconsole: --listen {address}: Address already in use\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_end_it_and_its_sampler(machine: Machine, number: int, code: int) -> None:
    _, environment = machine("gpus 1")
    with Exporter(environment).ready() as exporter:
        (sampler,) = exporter.children()
        exporter.process.send_signal(number)
        assert exporter.process.wait(10) == code
        wait_until(lambda: gone(sampler.pid), what="the sampler's end")
        assert len(exporter.lines) == 1


@pytest.mark.slow
def test_a_killed_sampler_is_started_again(machine: Machine) -> None:
    script, environment = machine("gpus 1")
    with Exporter(environment).ready() as exporter:
        (sampler,) = exporter.children()
        script.write("gpus 1", "gpu 0 power_mw 111000")
        sampler.kill()
        wait_until(lambda: exporter.value("gpuconsole_sampler_restarts_total") == 1)
        wait_until(
            lambda: exporter.value("gpuconsole_gpu_power_watts", "gpu:0") == 111,
            what="a value of the new sampler",
        )
        assert exporter.value("gpuconsole_sampler_up") == 1
        assert "the sampler ended (exit -9); starting it again in 0.5 s" in exporter.lines[-1]


def test_a_sampler_that_cannot_start_is_reported_with_its_last_output(machine: Machine) -> None:
    _, environment = machine("no such statement")
    with Exporter(environment) as exporter:
        wait_until(lambda: (exporter.value("gpuconsole_sampler_restarts_total") or 0) >= 2)
        status, reason = exporter.get("/healthz")
        assert (status, "no such statement" in reason) == (503, True)
        assert exporter.value("gpuconsole_sampler_up") == 0
        assert not exporter.values("gpuconsole_gpu_power_watts")


@pytest.mark.slow
def test_values_of_a_hanging_driver_disappear_and_return(machine: Machine) -> None:
    script, environment = machine("gpus 1", "gpu 0 power_mw 350000")
    with Exporter(environment).ready() as exporter:
        (sampler,) = exporter.children()
        script.write("gpus 1", "gpu 0 power_mw 222000", "gpu 0 delay nvmlDeviceGetPowerUsage 6500")
        wait_until(
            lambda: not exporter.values("gpuconsole_gpu_power_watts"), what="the old values gone"
        )
        assert not exporter.values("gpuconsole_gpu_hbm_used_bytes")
        assert not exporter.values("DCGM_FI_DEV_POWER_USAGE")
        assert (exporter.value("gpuconsole_sample_age_seconds", "gpu:0") or 0) > 5
        assert max(exporter.values("gpuconsole_source_stuck_seconds", source="nvml").values()) > 4
        # the other source goes on
        assert exporter.value("gpuconsole_host_memory_total_bytes", "cpu")
        status, reason = exporter.get("/healthz")
        assert (status, "nvml has not answered" in reason) == (503, True)
        script.write("gpus 1", "gpu 0 power_mw 222000")
        wait_until(
            lambda: exporter.value("gpuconsole_gpu_power_watts", "gpu:0") == 222,
            what="the value back",
        )
        wait_until(lambda: exporter.get("/healthz")[0] == 200)
        assert [child.pid for child in exporter.children()] == [sampler.pid]


def test_a_lost_gpu_has_a_reason_and_no_values_and_the_others_go_on(machine: Machine) -> None:
    script, environment = machine("gpus 3", *GPM)
    with Exporter(environment).ready() as exporter:
        assert exporter.values("gpuconsole_device_lost") == {}
        script.write("gpus 3", *GPM, "gpu * power_mw 99000", "gpu 1 lost 1")
        wait_until(
            lambda: exporter.value("gpuconsole_device_lost", "gpu:1", reason="GPU is lost") == 1,
            what="the loss",
        )
        wait_until(lambda: exporter.value("gpuconsole_gpu_power_watts", "gpu:2") == 99)
        assert exporter.values("gpuconsole_gpu_power_watts").keys() == {"gpu:0", "gpu:2"}
        assert exporter.values("DCGM_FI_PROF_SM_ACTIVE").keys() == {"nvidia0", "nvidia2"}
        assert not any(
            "gpu:1/link" in device for device in exporter.values("gpuconsole_gpu_link_up")
        )
        assert exporter.value("gpuconsole_unavailable", "gpu:1", metric="gpu.power_w") == 1
        assert exporter.get("/healthz")[0] == 200


def test_what_is_not_available_is_absent_with_its_reason(machine: Machine) -> None:
    _, environment = machine(
        "gpus 2",
        *GPM,
        "gpu 1 gpm_support 0",
        "gpu 1 architecture 7",
        "gpu 0 error nvmlDeviceGetTemperatureV 3",
    )
    with Exporter(environment).ready() as exporter:
        reason = "GPM needs Hopper or newer"
        wait_until(
            lambda: (
                exporter.value(
                    "gpuconsole_unavailable", "gpu:1", metric="gpu.sm_active_ratio", reason=reason
                )
                == 1
            )
        )
        assert exporter.values("gpuconsole_gpu_sm_active_ratio").keys() == {"gpu:0"}
        # Without GPM our PCIe rates are not what DCGM means.
        assert exporter.values("DCGM_FI_PROF_PCIE_RX_BYTES").keys() == {"nvidia0"}


def test_without_a_gpu_the_host_is_served_and_the_reason_is_given(machine: Machine) -> None:
    _, environment = machine("init_error 9")
    with Exporter(environment) as exporter:
        wait_until(lambda: exporter.get("/healthz")[0] == 200)
        assert exporter.value("gpuconsole_host_memory_total_bytes", "cpu")
        assert exporter.values("gpuconsole_device_info").keys() == {"cpu"}
        assert exporter.values("gpuconsole_unavailable", metric="gpu.*").keys() == {"gpu"}


def test_dcgm_supplies_what_nvml_cannot_report(machine: Machine) -> None:
    page = dcgm_page(
        {UUID.format(0): {"DCGM_FI_PROF_SM_ACTIVE": "0.4375", "DCGM_FI_DEV_POWER_USAGE": "1.0"}}
    )
    _, environment = machine("gpus 1", "gpu 0 gpm_support 0", "gpu 0 power_mw 250000")
    with FakeDcgm(page) as dcgm, Exporter(environment, "--dcgm", dcgm.url).ready() as exporter:
        wait_until(
            lambda: exporter.value("gpuconsole_gpu_sm_active_ratio", "gpu:0") == 0.4375,
            what=f"DCGM's value; {exporter.lines}",
        )
        assert exporter.value("gpuconsole_gpu_power_watts", "gpu:0") == 250


def test_help_has_examples(cli: Cli) -> None:
    told = cli("exporter", "--help").stdout
    assert "examples:" in told
    assert "--token-file" in told


def test_slow_and_closed_clients_are_not_reported(machine: Machine) -> None:
    _, environment = machine("gpus 1")
    with Exporter(environment).ready() as exporter:
        host, port = exporter.address.rsplit(":", 1)
        with (
            socket.create_connection((host, int(port))) as slow,
            socket.create_connection((host, int(port))) as rude,
        ):
            slow.sendall(b"GET /metr")
            rude.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            rude.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
            )
            rude.close()
            assert exporter.get()[0] == 200
        assert exporter.get("/healthz")[0] == 200
        assert len(exporter.lines) == 1


@pytest.mark.slow
def test_a_run_serves_its_workload_too(machine: Machine) -> None:
    _, environment = machine("init_error 9")
    small = ("--set", "d_model=64", "--set", "n_layer=1")
    words = (
        "run",
        "train-gpt",
        "--headless",
        "--duration",
        "60",
        "--serve",
        "127.0.0.1:0",
        "--price",
        "3.6",
        *small,
    )
    with Exporter(environment, command=words) as exporter:
        wait_until(
            lambda: exporter.value("gpuconsole_workload_tokens_per_second", "cpu"),
            60,
            "tokens per second",
        )
        rate = exporter.value("gpuconsole_workload_tokens_per_second", "cpu")
        cost = exporter.value("gpuconsole_workload_cost_per_million_tokens", "cpu")
        # 3.6 an hour are 1000 per million seconds
        assert rate and cost and cost * rate == pytest.approx(1000, rel=0.9)
        assert exporter.value("gpuconsole_host_memory_total_bytes", "cpu")


@contextlib.contextmanager
def answering() -> Iterator[str]:
    """A server in an event loop on a thread of its own; its address."""
    server = metrics_server.MetricsServer("127.0.0.1", 0, SessionState())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = asyncio.run_coroutine_threadsafe(server.serve(), loop)
    try:
        yield server.address
    finally:
        serving.cancel()
        wait_until(lambda: not asyncio.all_tasks(loop), what="the end of the server")
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_more_clients_than_are_served_write_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """The clients above the limit are refused."""

    async def main() -> None:
        server = metrics_server.MetricsServer("127.0.0.1", 0, SessionState(1.0, history=False))
        serving = asyncio.create_task(server.serve())
        host, _, port = server.address.rpartition(":")
        clients = await asyncio.gather(
            *(asyncio.open_connection(host, int(port)) for _ in range(60))
        )
        for _, writer in clients:
            writer.close()
        await asyncio.sleep(0.1)
        serving.cancel()
        await asyncio.wait([serving])

    asyncio.run(main())
    gc.collect()
    assert caplog.records == []


def test_slow_clients_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "MAX_CLIENTS", 2)
    monkeypatch.setattr(metrics_server, "CLIENT_S", 0.5)
    with answering() as address, connected(address) as slow, connected(address) as silent:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")  # and no end

        def answers() -> bool:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://{address}/", timeout=2) as answer,
            ):
                return bool(answer.status == 200)
            return False

        assert not answers()  # both places are taken
        wait_until(answers, 5, "an answer after the deadline of the slow clients")
        assert silent.recv(1) == b""
        assert len([answers() for _ in range(5)]) == 5  # an answered client leaves its place


def everything(client: socket.socket) -> bytes:
    """All that the server sends until it closes the connection, by force where it has unread
    data."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 16):
            received += piece
    return received


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nBad header\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n", b"405"),
        (b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nPRI", b"200"),
        (b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n" * 1000, b"404"),
    ],
    ids=[
        "nonsense",
        "a long header",
        "a bad header",
        "TLS",
        "a large body",
        "HEAD",
        "an upgrade",
        "many requests",
    ],
)
def test_unusual_requests_get_one_answer_and_write_no_line(
    request_: bytes, status: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with answering() as address, connected(address) as client:
        client.sendall(request_)
        received = everything(client)
    assert received.split()[1:2] in ([status], []) and received.count(b"HTTP/1.") <= 1
    assert capfd.readouterr() == ("", "")
