"""Prometheus: the newest value of every metric of every device. Each metric has our name. A metric
that DCGM has too is also exported under DCGM's name.

A value that is old, lost or n/a is absent, and the reason is exported. Such a value is never
exported as zero.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import lru_cache

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuconsole import __version__
from gpuconsole.model.machine import UNIFIED, Device
from gpuconsole.model.metrics import CATALOGUE, FIELDS, XID_FIELD
from gpuconsole.model.metrics import Metric as Declared
from gpuconsole.model.text import visible as _visible
from gpuconsole.report.prometheus.scrape import Scrape
from gpuconsole.session.machine import parent

PREFIX = "gpuconsole_"
visible = lru_cache(4096)(_visible)  # thousands of labels contain the same few names
_UNITS = {"w": "watts", "j": "joules", "c": "celsius", "hz": "hertz", "s": "seconds"}
_PER = {"s": "second", "j": "joule"}

# Metrics about the exporter itself. The catalogue has the metrics of devices.
OWN = {
    "gpuconsole_build_info": "The exporter's version.",
    "gpuconsole_device_info": "A device and its fixed properties.",
    "gpuconsole_device_lost": "1 for a device that the driver has lost, with the reason.",
    "gpuconsole_device_unreadable": (
        "1 for a GPU that gives no value at all, such as one without a handle, with the reason."
    ),
    "gpuconsole_gpu_state": (
        "1 for the state that a GPU is in: free, idle (its memory is held without work), busy, sick"
        " (it has a fault of its own), lost, silent or n/a."
    ),
    "gpuconsole_gpu_idle_seconds": (
        "How long the memory of a GPU has been held without work, at least: counted from the start"
        " of the exporter. 0 while the GPU is free or works; absent while that is not known."
    ),
    "gpuconsole_unavailable": "1 for a metric that a device cannot report, with the reason.",
    "gpuconsole_sample_age_seconds": (
        "Age of the newest sample of a device. Old values are not exported."
    ),
    "gpuconsole_sampler_up": "Whether the process that reads the devices runs and reports.",
    "gpuconsole_sampler_restarts_total": "How often this process was started again.",
    "gpuconsole_run_attainable_ratio": (
        "Rate of the current run over the rate that this hardware could reach for its work. Above"
        " 1: the peaks in use are too low."
    ),
    "gpuconsole_run_valid": (
        "1 if the numbers of the current serving run are valid, 0 if they are degraded or invalid."
    ),
    "gpuconsole_model_server_up": (
        "1 while the model server of the current run answers requests, else 0."
    ),
    "gpuconsole_source_stuck_seconds": (
        "Seconds without an answer from a source of metrics; 0 while it answers."
    ),
    "gpuconsole_source_period_seconds": "Real time between two readings of a source.",
}


def exported_name(metric: Declared) -> str:
    """The series name of a catalogue metric: base units in words, and `_total` for counters."""
    *first, unit = metric.name.replace(".", "_").split("_")
    is_rate = len(first) > 1 and first[-1] == "per"
    unit = (_PER if is_rate else _UNITS).get(unit, unit)
    return PREFIX + "_".join([*first, unit]) + ("_total" if metric.kind == "counter" else "")


NAMES = {name: exported_name(metric) for name, metric in CATALOGUE.items()}
# Prometheus' linter rejects a name that contains its type.
EXPORTED_FIELDS = tuple(
    field for field in FIELDS if field.kind != "rate" and not field.field.endswith("_COUNTER")
)


def exported_names() -> set[str]:
    """Every series name that an exporter may show, except the metrics of the exporter's own
    process."""
    return {*NAMES.values(), *(field.field for field in EXPORTED_FIELDS), XID_FIELD, *OWN}


class ScrapeCollector(Collector):
    """The metric families of one scrape."""

    def __init__(self, scrape: Scrape, hostname: str | None = None) -> None:
        self._scrape = scrape
        self._hostname = visible(hostname or socket.gethostname())

    def collect(self) -> Iterator[Metric]:
        yield from self._catalogue()
        yield from self._dcgm()
        yield from self._devices()
        yield from self._attained()
        yield from self._serving()
        yield from self._health()

    def _catalogue(self) -> Iterator[Metric]:
        for name, metric in CATALOGUE.items():
            if name.startswith("server."):
                continue  # a model server has its own /metrics page
            readings = [
                (device, values[name])
                for device, values in self._scrape.values.items()
                if name in values
            ]
            if not readings:
                continue
            of_gpu = name.startswith("gpu.")
            family = _family(metric, ("device", "uuid", "model") if of_gpu else ("device",))
            for device, value in readings:
                family.add_metric(
                    [visible(device), *(self._identity(device) if of_gpu else ())], value
                )
            yield family

    def _identity(self, device: str) -> tuple[str, str]:
        gpu = self._scrape.device(device) or self._scrape.device(parent(device))
        return (visible(gpu.uuid), visible(gpu.name)) if gpu else ("", "")

    def _dcgm(self) -> Iterator[Metric]:
        gpus = [
            (device, self._scrape.values.get(device.id, {}))
            for device in self._scrape.devices
            if device.is_gpu and not device.is_mig
        ]
        for field in EXPORTED_FIELDS:
            metric = CATALOGUE[field.metric]
            # The counters of dcgm-exporter have no `_total`, which prometheus-client adds to
            # counters.
            family = Metric(
                field.field,
                f"Same meaning as in DCGM. {_help(metric)}",
                "gauge" if field.kind == "gauge" else "unknown",
            )
            for device, values in gpus:
                if device.is_unified and field.field.startswith("DCGM_FI_DEV_FB_"):
                    continue  # DCGM has no figures of unified memory
                if field.metric in values and (
                    not field.only_with or field.only_with in self._scrape.usual.get(device.id, ())
                ):
                    family.add_sample(
                        field.field,
                        self._dcgm_labels(device),
                        _tidy(values[field.metric] / field.factor),
                    )
            if family.samples:
                yield family
        xids = Metric(
            XID_FIELD,
            "Same meaning as in DCGM. The last error (XID) of the GPU; 0 when there was no error.",
            "gauge",
        )
        for device, values in gpus:
            if "gpu.xid_errors" in values:  # without this metric, XID errors are not monitored
                xids.add_sample(
                    XID_FIELD, self._dcgm_labels(device), self._scrape.last_xid.get(device.id, 0)
                )
        if xids.samples:
            yield xids

    def _dcgm_labels(self, device: Device) -> dict[str, str]:
        """The labels of dcgm-exporter, except `modelName`: Prometheus' linter rejects this label.
        `gpuconsole_device_info` reports the model."""
        index = device.id.rpartition(":")[2]
        labels = {
            "gpu": index,
            "UUID": visible(device.uuid),
            "device": f"nvidia{index}",
            "Hostname": self._hostname,
        }
        address = device.facts.get("pci", "").upper()
        return labels | ({"pci_bus_id": visible(address)} if address else {})

    def _devices(self) -> Iterator[Metric]:
        scrape = self._scrape
        info = InfoMetricFamily("gpuconsole_device", OWN["gpuconsole_device_info"])
        for device in scrape.devices:
            facts = {
                "uuid": device.uuid,
                "model": device.name,
                "pcie": device.pcie,
                "nvlink": device.nvlink,
            }
            facts |= {"memory": UNIFIED} if device.is_unified else {}
            driver = scrape.driver if device.is_gpu else ""
            labels = {"device": device.id, **facts, "driver": driver}
            info.add_metric([], {name: visible(text) for name, text in labels.items()})
        lost = _own_gauge("gpuconsole_device_lost", "device", "reason")
        for name, reason in scrape.lost.items():
            lost.add_metric([visible(name), visible(reason)], 1)
        unreadable = _own_gauge("gpuconsole_device_unreadable", "device", "reason")
        for name, reason in scrape.unreadable.items():
            unreadable.add_metric([visible(name), visible(reason)], 1)
        state = _own_gauge("gpuconsole_gpu_state", "device", "state")
        idle = _own_gauge("gpuconsole_gpu_idle_seconds", "device")
        for name, gpu in scrape.states.items():
            state.add_metric([visible(name), gpu.kind], 1)
            if gpu.idle_s or gpu.kind in ("free", "busy"):
                idle.add_metric([visible(name)], gpu.idle_s)
        missing = _own_gauge("gpuconsole_unavailable", "device", "metric", "reason")
        for name, reasons in scrape.unavailable.items():
            for metric, reason in reasons.items():
                missing.add_metric([visible(name), visible(metric), visible(reason)], 1)
        yield from (info, lost, unreadable, state, idle, missing)

    def _attained(self) -> Iterator[Metric]:
        run = self._scrape.attained
        if run is not None:
            family = _own_gauge("gpuconsole_run_attainable_ratio", "scenario", "bound")
            family.add_metric([visible(run.scenario), run.bound], _tidy(run.ratio))
            yield family

    def _serving(self) -> Iterator[Metric]:
        run = self._scrape.serving
        if run is None:
            return
        up = _own_gauge("gpuconsole_model_server_up", "scenario")
        up.add_metric([visible(run.scenario)], float(run.server_up))
        yield up
        if run.verdict:
            valid = _own_gauge("gpuconsole_run_valid", "scenario", "verdict")
            valid.add_metric([visible(run.scenario), run.verdict], float(run.verdict == "valid"))
            yield valid

    def _health(self) -> Iterator[Metric]:
        scrape = self._scrape
        build = InfoMetricFamily("gpuconsole_build", OWN["gpuconsole_build_info"])
        build.add_metric([], {"version": __version__})
        up = _own_gauge("gpuconsole_sampler_up")
        up.add_metric([], float(scrape.sampler_up))
        restarts = CounterMetricFamily(
            "gpuconsole_sampler_restarts",
            OWN["gpuconsole_sampler_restarts_total"],
            value=scrape.sampler_restarts,
        )
        age = _own_gauge("gpuconsole_sample_age_seconds", "device")
        for name, age_s in scrape.ages_s.items():
            age.add_metric([visible(name)], age_s)
        stuck = _own_gauge("gpuconsole_source_stuck_seconds", "source")
        stuck.add_metric(["sampler"], scrape.sampler_silent_s)
        period = _own_gauge("gpuconsole_source_period_seconds", "source")
        for name, (stuck_s, period_s) in scrape.sources.items():
            stuck.add_metric([visible(name)], stuck_s)
            period.add_metric([visible(name)], period_s)
        yield from (build, up, restarts, age, stuck, period)


def _family(metric: Declared, labels: tuple[str, ...]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(NAMES[metric.name], _help(metric), labels=labels)


def _help(metric: Declared) -> str:
    return f"{metric.meaning}. Source: {metric.source}."


def _own_gauge(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, OWN[name], labels=labels)


def _tidy(value: float) -> float:
    """`value` rounded to 15 digits: the conversion from a ratio to percent can give
    56.99999999999999 for 57."""
    return float(f"{value:.15g}")
