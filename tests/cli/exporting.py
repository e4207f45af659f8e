"""The real `gpuconsole exporter` in a separate process, and the page that Prometheus reads."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from types import TracebackType

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import wait_until


class Exporter:
    """One exporter on a free port. `lines`: its output on stderr."""

    def __init__(
        self,
        environment: dict[str, str],
        *options: str,
        listen: str = "127.0.0.1:0",
        interval: str = "0.2",
        command: tuple[str, ...] = (),
    ) -> None:
        """`command` replaces `exporter --listen ADDRESS`."""
        words = command or ("exporter", "--listen", listen)
        command = (sys.executable, "-m", "gpuconsole", *words, "--interval", interval, *options)
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        wait_until(lambda: self._address() or self.process.poll() is not None, what="the address")
        self.address = self._address()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self.children():
            child.kill()
        self.process.kill()
        self.process.wait(10)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def _address(self) -> str:
        return next(
            (
                found[1]
                for line in list(self.lines)
                if (found := re.search(r"serving http://(\S+)/metrics", line))
            ),
            "",
        )

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def get(self, path: str = "/metrics", headers: dict[str, str] | None = None) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def values(self, name: str, **labels: str) -> dict[str, float]:
        """The series of `name` that have these labels, by device."""
        status, page = self.get()
        # 503 while the session begins
        families = text_string_to_metric_families(page) if status == 200 else ()
        return {
            sample.labels.get("device", ""): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def value(self, name: str, device: str = "", **labels: str) -> float | None:
        return self.values(name, **labels).get(device)

    def ready(self) -> Exporter:
        """Wait until /healthz answers 200."""
        wait_until(
            lambda: self.get("/healthz")[0] == 200 and self.values("gpuconsole_gpu_power_watts"),
            what=f"samples; {self.lines}",
        )
        return self
