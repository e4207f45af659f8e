"""Reads a trace and writes the report: `python -m gpuconsole.workloads.profiling.analyse TRACE
REPORT`. Needs no torch.

A separate process with low priority, because the profiled training continues meanwhile.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
from pathlib import Path

import msgspec

from gpuconsole.host.files import writing
from gpuconsole.model.profile import ProfileReport
from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.profiling.summary import Update, summarize
from gpuconsole.workloads.profiling.trace import TraceError, read_trace

LEVEL = 3
"""gzip's default level 6 takes three times as long for a file that is a tenth smaller."""
NICE = 10


def keep(path: Path, target: Path) -> None:
    """Write `path`, gzipped, to `target`: completely or not at all. The name of `target` is dated,
    so it is never a link. Raises OSError."""
    with (
        writing(target, follow=False) as raw,
        path.open("rb") as source,
        gzip.GzipFile("", "wb", LEVEL, raw) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)


def kept(report: ProfileReport, path: Path, target: Path) -> ProfileReport:
    """The report with the path of its trace, or with the reason why the trace was not kept."""
    try:
        keep(path, target)
    except OSError as error:
        return msgspec.structs.replace(
            report,
            notes=[*report.notes, f"the trace was not kept: {target}: {error.strerror or error}"],
        )
    return msgspec.structs.replace(report, trace=str(target))


def main() -> int:
    parser = argparse.ArgumentParser(description="reads the trace of a profiler; internal")
    parser.add_argument("trace", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--note", default="")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--update", type=float, nargs=2, default=(0.0, 0.0))
    args = parser.parse_args()
    die_with_parent()
    os.nice(NICE)
    try:
        report = summarize(read_trace(args.trace), Update(*args.update), gpu=args.gpu)
        if args.note:
            report = msgspec.structs.replace(report, notes=[args.note, *report.notes])
        if args.keep:
            report = kept(report, args.trace, args.keep)
        args.report.write_bytes(msgspec.json.encode(report))
        args.trace.unlink()
    except (TraceError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
