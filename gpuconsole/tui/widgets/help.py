"""The help screen's text."""

from __future__ import annotations

from gpuconsole.report.cells import Row, blank
from gpuconsole.report.page import heading, labelled, paragraph

KEYS = (
    ("q, ctrl+c", "quit: ends the workload and everything it started"),
    ("s", "choose a scenario and start it; the one that runs ends, its figures stay"),
    ("up, down", "choose among the suggestions of all findings"),
    ("enter", "try the chosen suggestion: a trial in paired blocks, kept only if it wins"),
    ("t", "tune: the tool tries what promises most, keeps what wins and diagnoses anew, until nothing is left; a tree shows it"),
    ("u", "revert the last change that was kept"),
    ("k", "knobs: edit values, apply them at once or try them as a trial"),
    ("d", "details of all findings: evidence, reasons, code for your own program"),
    ("h", "history: throughput over time with the moments of change, distribution of step times or of requests' E2E"),
    ("f", "profile a few steps: where device time goes by kernel class, a roofline, a trace for Perfetto"),
    ("m", "models: FLOPs, MFU, memory by part, bandwidth and communication as formulas say, beside the measurement; all processes"),
    ("i", "device: every metric with its value, unit and source, and why some are n/a"),
    ("p", "processes on the GPUs: sort, filter, tree, send a signal"),
    ("l", "links: the topology of the GPUs, with NUMA nodes and CPUs"),
    ("r", "begin or end a recording of the session"),
    ("e", "export a snapshot (JSON) of the session"),
    ("b", "keep the run as a baseline that later ones are held against: now, or when it ends"),
    ("x", "stop the run"),
    ("escape", "back to the main screen"),
    ("ctrl+p", "command palette"),
    ("ctrl+l", "draw again: something else has written to the terminal"),
)
READING = (
    ("where a step goes", "the parts exclude each other and add up to the whole step"),
    ("recoverable", "the share of step time that a finding is about; findings are ranked by it and by their confidence"),
    ("of memory", "the share of the memory that may be used which the first suggestion would free; that may cost time"),
    ("predicted", "throughput after over before, as an interval, from the measured parts of a step"),
    ("trial", "steps with and without the change in turn (ABBA); the figure is the ratio with its 95 % interval"),
    ("kept, reverted", "the verdict of a trial; 'unproven' is a change that was applied without one"),
    ("vs baseline", "throughput against the runs kept for this scenario, hardware and software; red when slower beyond noise"),
    ("where a request goes", "queue, prefill and decode by the server's own account, transport the rest of E2E as the client sees it"),
    ("TTFT, TPOT, E2E", "sent to first token; (E2E - TTFT) / (output tokens - 1); sent to last token"),
    ("ITL", "gap between tokens: a chunk of k tokens is k gaps of gap/k"),
    (
        "rank",
        "one of several processes that train together; a step's time without communication is its own, the rest is waiting for others",
    ),
    ("n/a", "the hardware or the driver does not report it: the reason stands beside it"),
    ("CPU (no GPU: ...)", "all figures are the host's; nothing shown is GPU data"),
    ("sparklines", "two seconds a column, the newest at the right; a gap is a time without samples"),
)


def paint_help(width: int) -> list[Row]:
    column = 20 if width >= 60 else 12
    rows = paragraph("Run a workload, see where its time goes, change one thing, and have it proved whether it helped.", width)
    rows += [blank(width), heading("Keys", width)]
    for key, what in KEYS:
        rows += labelled(f"  {key}", what, width, column)
    rows += [blank(width), heading("Reading the screen", width)]
    for word, what in READING:
        rows += labelled(f"  {word}", what, width, column)
    return rows
