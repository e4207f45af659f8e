"""The figures of a run's summary, one row for each. Reports, comparisons, the list of baselines and live metrics are made from these rows.

A figure is added as a field of `model.run.Summary` with a row here, and where it is computed (`session.figures`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Better = Literal["higher", "lower", ""]


class SummaryFigure(NamedTuple):
    """What is known about the field `field` of `Summary`. `better`: which direction is better; empty where neither is.

    - `label`: the name of the figure beside another figure. `short`: the name of the figure in the list of baselines; empty if the list has no such column.
    - `text`: the words around the plain number, for a figure that is not shown as a number with `unit`.
    - `peak`: the field with the source of the peak that a ratio refers to.
    - `row`: the row of a run's report that holds the figure, and the words around it. `needs`: the figure without which it is left out.
    - `beside`: the values that a report of two runs shows: percentiles, or the figure itself (`mean`). `always`: that report has a row for
      the figure also where it was not measured.
    - `formula`: how a latency is measured. The latencies have a table of their own, the most important first.
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
        """The name of the live metric. `Run.unavailable` explains a missing figure under this name too."""
        return f"workload.{self.field}"


MEAN, TAIL = ("mean",), ("p50", "p99")
STEPS, LOAD, DERIVED = "step breakdown", "load generator", "derived"
SENT = "from sending the request to the"

_F = SummaryFigure
# fmt: off
FIGURES: dict[str, SummaryFigure] = {figure.field: figure for figure in (
    _F("tokens_per_s", "tokens/s", "higher", "throughput", beside=MEAN, always=True,
       live=(STEPS, "Tokens trained per second of step time")),
    _F("samples_per_s", "samples/s", "higher", "throughput", beside=MEAN, always=True,
       live=(STEPS, "Samples trained per second of step time")),
    _F("requests_per_s", "requests/s", "higher", "requests", text="{} requests/s", beside=MEAN,
       live=(LOAD, "Requests answered per second")),
    _F("goodput_per_s", "", "higher", "goodput", text="{} requests/s", beside=MEAN),
    _F("failed_requests", "", "lower"),
    _F("step_time_s", "s", "lower", "step time", "step", beside=(*MEAN, *TAIL), live=(STEPS, "Wall time of a step")),
    _F("ttft_s", "s", "lower", "TTFT", beside=TAIL, formula=f"{SENT} first token",
       live=(LOAD, f"Time to first token: {SENT} first token; median over one second")),
    _F("tpot_s", "s", "lower", "TPOT", beside=TAIL, formula="(E2E - TTFT) / (output tokens - 1), per request",
       live=(LOAD, "Time per output token: (E2E - TTFT) / (output tokens - 1); median over one second")),
    _F("itl_s", "s", "lower", "ITL", beside=TAIL, formula="gap between tokens; a chunk of k tokens counts as k gaps of gap/k",
       live=(LOAD, "Inter-token latency: a chunk of k tokens counts as k gaps of gap/k; median over one second")),
    _F("e2e_s", "s", "lower", "E2E", beside=TAIL, formula=f"{SENT} last token",
       live=(LOAD, f"{SENT.capitalize()} last token; median over one second")),
    _F("client_queue_s", "s", "", "client queue", formula="from the due time to sending, in the client"),
    _F("chunk_gap_s", "s", "lower", "chunk gap", formula="time between two chunks of any number of tokens (vLLM bench calls this ITL)"),
    _F("client_runq_ratio", "ratio"),
    _F("runq_ratio", "ratio"),
    _F("flops_per_s", "FLOP/s", "higher", "arithmetic", row=("arithmetic", "{}"), beside=MEAN,
       live=(STEPS, "Model FLOPs per second of step time")),
    _F("mfu_ratio", "ratio", "higher", "MFU", "MFU", peak="mfu_peak_source", row=("arithmetic", "MFU {}"), needs="flops_per_s",
       beside=MEAN, always=True, live=(STEPS, "Model FLOP/s over the peak that the run is compared with")),
    _F("mfu_causal_ratio", "ratio", "higher", "MFU, causal count", row=("arithmetic", "{} by the causal count of attention"),
       needs="mfu_ratio"),
    _F("hfu_ratio", "ratio", "", "HFU", row=("arithmetic", "HFU {} with recomputation"), needs="mfu_ratio"),
    _F("memory_bytes_per_s", "bytes/s", "", "memory rate", row=("memory rate", "{} must move")),
    _F("mbu_ratio", "ratio", "higher", "MBU", peak="mbu_peak_source", row=("memory rate", "MBU {}"), needs="memory_bytes_per_s",
       beside=MEAN),
    _F("loss_first", ""),
    _F("loss_last", "", "", "loss", row=("loss", "{}"), needs="loss_first"),
    _F("memory_peak_bytes", "bytes", "lower", "memory peak", "memory", row=("memory peak", "{}"), beside=MEAN),
    _F("energy_j", "J", "lower", "energy", row=("energy", "{}"), beside=MEAN, always=True),
    _F("flops_per_j", "FLOP/s/W", "higher", row=("energy", "{}"), needs="energy_j",
       live=(DERIVED, "Model FLOP/s per watt of device power")),
    _F("tokens_per_j", "tokens/J", "higher", "tokens per joule", text="{} tokens/J", row=("cost", "{}"), beside=MEAN,
       live=(DERIVED, "Tokens per joule: tokens/s over the power of the device")),
    _F("cost_per_million_tokens", "per Mtoken", "lower", "cost", text="cost {} per million tokens", row=("cost", "{}"), beside=MEAN,
       live=(DERIVED, "Price per hour (--price) over millions of tokens per hour, in the currency of the price")),
    _F("overhead_s_per_step", "s", "lower", "agent cost", row=("agent cost", "{} per step, measured by the agent itself")),
    _F("probes_s", "s", "", "probes", row=("probes", "{} in all")),
)}
# fmt: on
"""In the order of the reports."""

LATENCIES = tuple(figure for figure in FIGURES.values() if figure.formula)
