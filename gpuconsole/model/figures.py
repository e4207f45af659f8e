"""The figures of a run: predictions of the models next to measurements, the attainable rate, and
the figures of the summary."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One quantity with its predicted and its measured value. Either value may be missing; `note`
    then holds the reason.

    `formula` is the model in one line with its source. `source` names the source of the
    measurement.
    """

    name: str
    title: str
    unit: str
    predicted: float | None = None
    measured: float | None = None
    formula: str = ""
    source: str = ""
    note: str = ""

    @property
    def error_ratio(self) -> float | None:
        """The error of the prediction over the measurement, 0..1; None where one of the two values
        is missing."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1


Bound = Literal["compute", "memory bandwidth", "offered load"]
"""What limits a run at its attainable rate. `offered load`: the clients send fewer requests than
the hardware could answer."""


class TimePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of the time of a step, or of an output token. `name` is stable; `title` is for
    people.

    `time_s` is negative where the run is faster than the calculation; `note` then holds the reason.
    `lost_per_s`: how much of the rate the part costs, after the parts before it.
    """

    name: str
    title: str
    time_s: float
    lost_per_s: float = 0.0
    note: str = ""


class RatePair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reached rate next to the attainable rate, in `unit`. None: not known."""

    name: str
    title: str
    unit: str
    reached_per_s: float | None = None
    attainable_per_s: float | None = None

    @property
    def share_ratio(self) -> float | None:
        """The reached rate over the attainable rate; None where one of the two is not known."""
        return (
            self.reached_per_s / self.attainable_per_s
            if self.reached_per_s is not None and self.attainable_per_s
            else None
        )


class Attainable(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rate that the hardware could reach for the work of a run, by the roofline of its FLOPs
    and bytes.

    `rates`: the main rate of the run first. Empty: not known, and `reason` says why. `bound`: what
    limits the run at the attainable rate. `source`: the peaks in use. `parts`: the time `per` step
    or output token; the first part is the time at the attainable rate, and the sum is the time at
    the reached rate. `notes`: the limits of the calculation, in sentences.
    """

    rates: tuple[RatePair, ...] = ()
    bound: Bound | None = None
    source: str = ""
    formula: str = ""
    per: Literal["step", "output token"] = "step"
    parts: tuple[TimePart, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def main(self) -> RatePair | None:
        """The main rate of the run, reached and attainable."""
        return self.rates[0] if self.rates else None

    @property
    def share_ratio(self) -> float | None:
        """The reached share of the attainable rate. More than 1: the peaks in use are too low."""
        return self.main.share_ratio if self.main is not None else None


# --- the figures of a run's summary ---------------------------------------------------------------
# One row for each. Reports, comparisons, the list of baselines and live metrics are made from these
# rows.
# A figure is added as a field of `model.run.Summary` with a row here, and where it is computed
# (`session.figures`).

Better = Literal["higher", "lower", ""]


class SummaryFigure(NamedTuple):
    """What is known about the field `field` of `Summary`. `better`: which direction is better;
    empty where neither is.

    - `label`: the name of the figure beside another figure. `short`: the name of the figure in the
      list of baselines; empty if the list has no such column.
    - `text`: the words around the plain number, for a figure that is not shown as a number with
      `unit`.
    - `peak`: the field with the source of the peak that a ratio refers to.
    - `row`: the row of a run's report that holds the figure, and the words around it. `needs`: the
      figure without which it is left out.
    - `beside`: the values that a report of two runs shows: percentiles, or the figure itself
      (`mean`). `always`: that report has a row for the figure also where it was not measured.
    - `formula`: how a latency is measured. The latencies have a table of their own, the most
      important first.
    - `live`: the source and the meaning of its live metric; None where it has none.
    """

    field: str
    unit: str
    better: Better = ""
    label: str = ""
    short: str = ""
    text: str = ""
    peak: str = ""
    row: tuple[str, str] = ("", "")
    needs: str = ""
    beside: tuple[str, ...] = ()
    always: bool = False
    formula: str = ""
    live: tuple[str, str] | None = None

    @property
    def metric(self) -> str:
        """The name of the live metric. `Run.unavailable` explains a missing figure under this name
        too."""
        return f"workload.{self.field}"


MEAN, TAIL = ("mean",), ("p50", "p99")
STEPS, LOAD, DERIVED = "step breakdown", "load generator", "derived"
SENT = "from sending the request to the"

_F = SummaryFigure
FIGURES: dict[str, SummaryFigure] = {
    figure.field: figure
    for figure in (
        _F(
            "tokens_per_s",
            "tokens/s",
            "higher",
            "throughput",
            beside=MEAN,
            always=True,
            live=(STEPS, "Tokens trained per second of step time"),
        ),
        _F(
            "samples_per_s",
            "samples/s",
            "higher",
            "throughput",
            beside=MEAN,
            always=True,
            live=(STEPS, "Samples trained per second of step time"),
        ),
        _F(
            "requests_per_s",
            "requests/s",
            "higher",
            "requests",
            text="{} requests/s",
            beside=MEAN,
            live=(LOAD, "Requests answered per second"),
        ),
        _F("goodput_per_s", "", "higher", "goodput", text="{} requests/s", beside=MEAN),
        _F("failed_requests", "", "lower"),
        _F(
            "step_time_s",
            "s",
            "lower",
            "step time",
            "step",
            beside=(*MEAN, *TAIL),
            live=(STEPS, "Wall time of a step"),
        ),
        _F(
            "ttft_s",
            "s",
            "lower",
            "TTFT",
            beside=TAIL,
            formula=f"{SENT} first token",
            live=(LOAD, f"Time to first token: {SENT} first token; median over one second"),
        ),
        _F(
            "tpot_s",
            "s",
            "lower",
            "TPOT",
            beside=TAIL,
            formula="(E2E - TTFT) / (output tokens - 1), per request",
            live=(
                LOAD,
                "Time per output token: (E2E - TTFT) / (output tokens - 1); median over one second",
            ),
        ),
        _F(
            "itl_s",
            "s",
            "lower",
            "ITL",
            beside=TAIL,
            formula="gap between tokens; a chunk of k tokens counts as k gaps of gap/k",
            live=(
                LOAD,
                (
                    "Inter-token latency: a chunk of k tokens counts as k gaps of gap/k; median"
                    " over one second"
                ),
            ),
        ),
        _F(
            "e2e_s",
            "s",
            "lower",
            "E2E",
            beside=TAIL,
            formula=f"{SENT} last token",
            live=(LOAD, f"{SENT.capitalize()} last token; median over one second"),
        ),
        _F(
            "client_queue_s",
            "s",
            "",
            "client queue",
            formula="from the due time to sending, in the client",
        ),
        _F(
            "chunk_gap_s",
            "s",
            "lower",
            "chunk gap",
            formula="time between two chunks of any number of tokens (vLLM bench calls this ITL)",
        ),
        _F("client_runq_ratio", "ratio"),
        _F("runq_ratio", "ratio"),
        _F(
            "flops_per_s",
            "FLOP/s",
            "higher",
            "arithmetic",
            row=("arithmetic", "{}"),
            beside=MEAN,
            live=(STEPS, "Model FLOPs per second of step time"),
        ),
        _F(
            "mfu_ratio",
            "ratio",
            "higher",
            "MFU",
            "MFU",
            peak="mfu_peak_source",
            row=("arithmetic", "MFU {}"),
            needs="flops_per_s",
            beside=MEAN,
            always=True,
            live=(STEPS, "Model FLOP/s over the peak that the run is compared with"),
        ),
        _F(
            "mfu_causal_ratio",
            "ratio",
            "higher",
            "MFU, causal count",
            row=("arithmetic", "{} by the causal count of attention"),
            needs="mfu_ratio",
        ),
        _F(
            "hfu_ratio",
            "ratio",
            "",
            "HFU",
            row=("arithmetic", "HFU {} with recomputation"),
            needs="mfu_ratio",
        ),
        _F("memory_bytes_per_s", "bytes/s", "", "memory rate", row=("memory rate", "{} must move")),
        _F(
            "mbu_ratio",
            "ratio",
            "higher",
            "MBU",
            peak="mbu_peak_source",
            row=("memory rate", "MBU {}"),
            needs="memory_bytes_per_s",
            beside=MEAN,
        ),
        _F("loss_first", ""),
        _F("loss_last", "", "", "loss", row=("loss", "{}"), needs="loss_first"),
        _F(
            "memory_peak_bytes",
            "bytes",
            "lower",
            "memory peak",
            "memory",
            row=("memory peak", "{}"),
            beside=MEAN,
        ),
        _F("energy_j", "J", "lower", "energy", row=("energy", "{}"), beside=MEAN, always=True),
        _F(
            "flops_per_j",
            "FLOP/s/W",
            "higher",
            row=("energy", "{}"),
            needs="energy_j",
            live=(DERIVED, "Model FLOP/s per watt of device power"),
        ),
        _F(
            "tokens_per_j",
            "tokens/J",
            "higher",
            "tokens per joule",
            text="{} tokens/J",
            row=("cost", "{}"),
            beside=MEAN,
            live=(DERIVED, "Tokens per joule: tokens/s over the power of the device"),
        ),
        _F(
            "cost_per_million_tokens",
            "per Mtoken",
            "lower",
            "cost",
            text="cost {} per million tokens",
            row=("cost", "{}"),
            beside=MEAN,
            live=(
                DERIVED,
                (
                    "Price per hour (--price) over millions of tokens per hour, in the currency of"
                    " the price"
                ),
            ),
        ),
        _F(
            "overhead_s_per_step",
            "s",
            "lower",
            "agent cost",
            row=("agent cost", "{} per step, measured by the agent itself"),
        ),
        _F("probes_s", "s", "", "probes", row=("probes", "{} in all")),
    )
}
"""In the order of the reports."""

LATENCIES = tuple(figure for figure in FIGURES.values() if figure.formula)
