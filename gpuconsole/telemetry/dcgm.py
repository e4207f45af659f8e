"""A running dcgm-exporter as a source for metrics that NVML cannot report.

Additional metrics by architecture, if the user's counters file lists the fields:
- Hopper and newer: none. DCGM reads its profiling fields from the same GPM counters that the NVML
  source reads.
- Volta, Turing and Ampere data-centre GPUs: SM activity and occupancy, tensor, fp64, fp32 and fp16
  activity, HBM bandwidth, PCIe and NVLink traffic, from DCGM's profiling module. The module needs
  root and is the only client of the hardware counters: while Nsight uses them, the fields are
  missing. There is no other source for these metrics on these GPUs.
- Pascal and older, and GeForce: no profiling fields. NVML reports all other fields too.

By default dcgm-exporter collects every 30 s (`-c 1000`: every second). Its last numbers are valid
until the next collection. Rates are over the time between two collections. Numbers that have not
changed for too long are stale: the energy counter of a GPU grows with every collection.
"""

from __future__ import annotations

import http.client
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

from prometheus_client.parser import text_string_to_metric_families

from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import CATALOGUE, FIELDS, DcgmField
from gpuconsole.telemetry.source import Readings, Reasons
from gpuconsole.wire.readings import Sample

TIMEOUT_S = 1.0
SOCKET_S = 5.0
STALE_S = 90.0  # three of dcgm-exporter's own periods
MAX_PAGE_BYTES = 32 << 20
_PREFIX = "DCGM_FI_"
_METRICS = (*(field.metric for field in FIELDS), "gpu.hbm_bytes_per_s")
# DCGM's codes for "no value": blank doubles, and the blank, not-found, not-supported and
# not-permitted integers.
_BLANK_DOUBLE = 140737488355328.0
_BLANK_INT32 = range(0x7FFFFFF0, 0x7FFFFFF4)
_BLANK_INT64 = float(0x7FFFFFFFFFFFFFF0)

Page = dict[str, dict[str, float]]  # by UUID, by field


class _Bad(Exception):
    """The page is not usable; the message is the reason."""


class DcgmSource:
    """Reads `url` for the GPUs of `devices`, matched by UUID; a GPU that opens late comes later.
    After each `read` every DCGM metric is in a sample or in `unavailable`; the caller selects the
    metrics."""

    name = "dcgm"

    def __init__(
        self,
        url: str,
        devices: Callable[[], list[Device]],
        timeout_s: float = TIMEOUT_S,
        stale_s: float = STALE_S,
    ) -> None:
        self._url = url
        self._devices = devices
        self._gpus: list[Device] = []
        self._timeout_s = timeout_s
        self._stale_s = stale_s
        self._scrape: _Scrape | None = None
        self._page: Page = {}
        self._page_t = -math.inf
        self._rates: Page = {}
        self._reasons: Reasons = {}

    def devices(self) -> list[Device]:
        return [device for device in self._devices() if device.is_gpu]

    def prime(self) -> Readings:
        """Send the first request without waiting. The first `read` receives the answer."""
        self._scrape = _Scrape(self._url)
        return []

    def read(self, t: float) -> Readings:
        self._gpus = self.devices()
        try:
            self._update(self._ask(), t)
            if t - self._page_t > self._stale_s:
                raise _Bad(
                    f"dcgm-exporter has returned the same numbers for {t - self._page_t:.0f} s"
                )
        except _Bad as bad:
            self._reasons = {gpu.id: dict.fromkeys(_METRICS, str(bad)) for gpu in self._gpus}
            return []
        readings: Readings = []
        for gpu in self._gpus:
            values, self._reasons[gpu.id] = self._look(gpu)
            readings.append(Sample(t=t, device=gpu.id, values=values))
        return readings

    def unavailable(self) -> Reasons:
        return self._reasons

    def slow(self) -> str:
        return ""

    def under_way(self) -> str:
        return "waiting for dcgm-exporter" if self._scrape is not None else ""

    def _ask(self) -> Page:
        """The current page. The call waits at most the timeout, and does not wait again for a late
        answer."""
        scrape = self._scrape = self._scrape or _Scrape(self._url)
        if not scrape.done.wait(0 if scrape.waited_for else self._timeout_s):
            scrape.waited_for = True
            raise _Bad(f"dcgm-exporter does not answer within {self._timeout_s:g} s")
        self._scrape = None
        if scrape.error:
            raise _Bad(scrape.error)
        return scrape.page

    def _update(self, page: Page, t: float) -> None:
        """Store a page. A page with the same numbers as the last page is the same collection and
        adds no measurement."""
        if page == self._page:
            return
        elapsed = t - self._page_t
        self._rates = {}
        for field in FIELDS:
            if field.kind == "rate":
                for uuid, now in page.items():
                    before = self._page.get(uuid, {}).get(field.field)
                    if before is not None and field.field in now and now[field.field] >= before:
                        self._rates.setdefault(uuid, {})[field.field] = (
                            now[field.field] - before
                        ) / elapsed
        self._page, self._page_t = page, t

    def _look(self, gpu: Device) -> tuple[dict[str, float], dict[str, str]]:
        """The values of a GPU in the catalogue's units, and the reasons for missing values."""
        if gpu.is_mig:
            return {}, dict.fromkeys(_METRICS, "dcgm-exporter does not name MIG slices by UUID")
        raw = self._page.get(gpu.uuid)
        if raw is None:
            return {}, dict.fromkeys(_METRICS, "dcgm-exporter does not report this GPU")
        values: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for field in FIELDS:
            source = self._rates.get(gpu.uuid, {}) if field.kind == "rate" else raw
            if field.field not in raw:
                reasons[field.metric] = (
                    f"dcgm-exporter does not report {field.field}: add it to its counters file"
                )
            elif field.field not in source:
                reasons[field.metric] = "a rate needs two collections of dcgm-exporter"
            else:
                try:
                    values[field.metric] = _value(field, source[field.field])
                except _Bad as bad:
                    reasons[field.metric] = str(bad)
        _derive(gpu, values, reasons)
        return values, reasons


def _value(field: DcgmField, raw: float) -> float:
    """The value in the catalogue's unit. Raises _Bad for DCGM's "no value" codes and for impossible
    values."""
    if (
        raw >= _BLANK_INT64
        or raw in _BLANK_INT32
        or (field.kind == "gauge" and raw >= _BLANK_DOUBLE)
    ):
        raise _Bad(f"DCGM has no value for {field.field}")
    value = raw * field.factor
    is_ratio = CATALOGUE[field.metric].unit == "ratio"
    # The timestamps of a rate are slightly late, so a share of time can be slightly above 1.
    if not 0 <= value < math.inf or (is_ratio and value > (1.5 if field.kind == "rate" else 1.01)):
        raise _Bad("dcgm-exporter reported an impossible value")
    return min(value, 1.0) if is_ratio else value


def _derive(gpu: Device, values: dict[str, float], reasons: dict[str, str]) -> None:
    share, peak = values.get("gpu.dram_active_ratio"), gpu.peaks.memory_bytes_per_s
    if share is None:
        reasons["gpu.hbm_bytes_per_s"] = reasons["gpu.dram_active_ratio"]
    elif peak is None:
        reasons["gpu.hbm_bytes_per_s"] = "the datasheet bandwidth of this device is not known"
    else:
        values["gpu.hbm_bytes_per_s"] = share * peak


class _Scrape:
    """One request on its own thread, so that name resolution, a slow server or an endless page does
    not delay other work."""

    def __init__(self, url: str) -> None:
        self.page: Page = {}
        self.error = ""
        self.done = threading.Event()
        self.waited_for = False
        self._url = url
        threading.Thread(target=self._run, name="dcgm", daemon=True).start()

    def _run(self) -> None:
        try:
            self.page = parse(_fetch(self._url))
        except _Bad as bad:
            self.error = str(bad)
        finally:
            self.done.set()


def _fetch(url: str) -> str:
    # No proxy: dcgm-exporter runs on this machine or nearby. Only HTTP is allowed, so that a
    # redirect cannot read a file.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"{parts.scheme or url} is not an allowed address")
        address = urlunsplit(
            parts._replace(path=parts.path if parts.path.strip("/") else "/metrics")
        )
        with opener.open(address, timeout=SOCKET_S) as response:
            body = _read_all(response)
    except urllib.error.HTTPError as error:
        error.close()
        raise _Bad(f"dcgm-exporter answers {_status(error.code)}") from None
    except urllib.error.URLError as error:
        raise _Bad(
            "dcgm-exporter cannot be reached:"
            f" {getattr(error.reason, 'strerror', None) or error.reason}"
        ) from None
    except http.client.InvalidURL:  # its text has a part of the address, which may be a password
        raise _Bad("dcgm-exporter cannot be read: its address is not valid") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Bad(f"dcgm-exporter cannot be read: {error or type(error).__name__}") from None
    return body.decode("utf-8", errors="replace")


def _read_all(response: http.client.HTTPResponse) -> bytes:
    """The body. Raises _Bad for a body that arrives too slowly or does not end."""
    body = bytearray()
    deadline = time.monotonic() + 2 * SOCKET_S
    while chunk := response.read1(1 << 16):
        body += chunk
        if len(body) > MAX_PAGE_BYTES or time.monotonic() > deadline:
            raise _Bad("the page of dcgm-exporter does not end")
    return bytes(body)


def _status(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


MAX_LINE_LENGTH = 2**14


def parse(text: str) -> Page:
    """The DCGM fields of whole GPUs in a page of dcgm-exporter; raises _Bad."""
    # Remove the TYPE lines: the parser renames counters.
    lines = [line for line in text.split("\n") if line.startswith(_PREFIX)]
    # see workloads/serving/scraping.py, read_families
    if any(len(line) > MAX_LINE_LENGTH for line in lines):
        raise _Bad(f"the page has a line of more than {MAX_LINE_LENGTH} characters")
    page: Page = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if not sample.labels.get("GPU_I_ID") and (uuid := sample.labels.get("UUID")):
                    # One shared NaN object, so that pages with NaN can be equal: containers compare
                    # elements by identity first.
                    value = math.nan if math.isnan(sample.value) else float(sample.value)
                    # A GPU that several pods share appears once per pod, with the same value.
                    page.setdefault(uuid, {}).setdefault(sample.name, value)
    except Exception as error:  # the parser raises any exception for malformed pages
        raise _Bad(f"the page of dcgm-exporter cannot be parsed: {type(error).__name__}") from None
    if not page:
        raise _Bad("the page has no DCGM metrics")
    return page
