"""OpenTelemetry over HTTP: metrics with the device as an attribute; findings and trials as spans.
The receiver and its headers are those of the environment variables OTEL_EXPORTER_OTLP_*."""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from gpuconsole import __version__
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.report.trackers.readings import Final, Point, SessionFacts, TrackerEvent

TIMEOUT_S = 5


class NotDelivered(RuntimeError):
    """The receiver did not take the readings."""


class OpenTelemetry:
    def __init__(self, _: str = "") -> None:
        # it would print on the screen what is said at the end
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        self._metrics, self._spans = (
            OTLPMetricExporter(timeout=TIMEOUT_S),
            OTLPSpanExporter(timeout=TIMEOUT_S),
        )
        self._gauges: dict[str, Any] = {}

    def begin(self, facts: SessionFacts) -> None:
        resource = Resource.create(
            {
                "service.name": "gpuconsole",
                "service.version": __version__,
                "gpuconsole.run": facts.title,
                **facts.values,
            }
        )
        self._reader = InMemoryMetricReader()
        self._meter = MeterProvider([self._reader], resource).get_meter("gpuconsole", __version__)
        self._tracer = TracerProvider(resource=resource, shutdown_on_exit=False).get_tracer(
            "gpuconsole", __version__
        )

    def log(self, point: Point) -> None:
        for reading in point.readings:
            declared = CATALOGUE.get(reading.metric)
            if reading.metric not in self._gauges:
                unit, meaning = (
                    (declared.unit, declared.meaning) if declared is not None else ("", "")
                )
                self._gauges[reading.metric] = self._meter.create_gauge(
                    reading.metric, unit, meaning
                )
            self._gauges[reading.metric].set(
                reading.value, {"device": reading.device} if reading.device else {}
            )
        data = self._reader.get_metrics_data()
        if (
            data is not None
            and self._metrics.export(data, timeout_millis=TIMEOUT_S * 1000)
            is not MetricExportResult.SUCCESS
        ):
            raise NotDelivered("the receiver did not answer, or refused")

    def note(self, event: TrackerEvent) -> None:
        at = round(event.wall * 1e9)
        attributes: dict[str, str | float] = {
            "gpuconsole.name": event.name,
            "gpuconsole.text": event.text,
            "gpuconsole.elapsed_s": event.elapsed_s,
        }
        span = self._tracer.start_span(event.kind, start_time=at, attributes=attributes)
        span.end(at)
        if self._spans.export([span]) is not SpanExportResult.SUCCESS:  # type: ignore[list-item]
            raise NotDelivered("the receiver did not answer, or refused")

    def end(self, final: Final) -> None:
        self.log(final.point)
        self._metrics.shutdown()
        self._spans.shutdown()  # type: ignore[no-untyped-call]
