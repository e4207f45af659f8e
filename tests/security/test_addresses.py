"""M6: a password in an address is refused, and is neither shown nor visible in the list of
processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import psutil
import pytest

from tests.conftest import Cli
from tests.waiting import wait_until

SECRET = "S3cret"


@pytest.mark.parametrize(
    "words",
    [
        ("run", "serve-chat", "--headless", "--url", f"http://user:{SECRET}@127.0.0.1:1"),
        (
            "run",
            "serve-chat",
            "--headless",
            "--url",
            "http://127.0.0.1:1",
            "--metrics-url",
            f"http://{SECRET}@127.0.0.1:1/metrics",
        ),
        ("devices", "--dcgm", f"http://mon:{SECRET}@127.0.0.1/metrics"),
        ("exporter", "--dcgm", f"http://mon:{SECRET}@127.0.0.1:9400/metrics"),
    ],
    ids=["url", "metrics-url", "dcgm of devices", "dcgm of the exporter"],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(
    cli: Cli, words: tuple[str, ...]
) -> None:
    done = cli(*words)
    assert done.returncode == 2 and "must not hold a user name or a password" in done.stderr
    assert SECRET not in done.stdout + done.stderr and done.stderr.count("\n") == 1


def test_a_password_in_the_environment_is_refused_too(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCONSOLE_DCGM", f"http://mon:{SECRET}@127.0.0.1/metrics")
    done = cli("devices")
    assert done.returncode == 2 and "GPUCONSOLE_DCGM" in done.stderr and SECRET not in done.stderr


def test_a_file_of_the_telemetry_never_names_the_address_in_a_reason() -> None:
    from gpuconsole.telemetry.dcgm import _Bad, _fetch

    with pytest.raises(_Bad) as raised:
        _fetch(f"http://mon:{SECRET}@127.0.0.1/metrics")
    assert SECRET not in str(raised.value)


def test_the_address_of_a_dcgm_exporter_is_on_no_command_line_of_a_child() -> None:
    address = "http://127.0.0.1:9/a-token-in-the-path"
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "exporter",
        "--listen",
        "127.0.0.1:0",
        "--dcgm",
        address,
    ]
    exporter = subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def children() -> list[tuple[list[str], str | None]]:
        """Command line and variable of each child that has begun its own program: until then a
        child has the exporter's command line."""
        started = []
        for child in psutil.Process(exporter.pid).children():
            with contextlib.suppress(psutil.Error):
                started.append((child.cmdline(), child.environ().get("GPUCONSOLE_DCGM")))
        return [
            (command, variable)
            for command, variable in started
            if command and command[1:] != words[1:]
        ]

    try:
        wait_until(
            lambda: any(variable == address for _, variable in children()),
            30,
            "the sampler with the address in its environment",
        )
        assert all(address not in command for command, _ in children())
    finally:
        exporter.kill()
        exporter.wait(10)
