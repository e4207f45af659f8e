"""Read result files of other clients: `vllm bench serve`, SGLang's bench_serving, AIPerf and
GuideLLM. The content of a file decides its format, never the name.

The tables in `formats` convert a file to a `Result`. `run_of` converts a `Result` to a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpuconsole.engine.clients.fields import (
    ClientFileError,
    Fields,
    check_memory,
    finite_json,
)
from gpuconsole.engine.clients.formats import AIPERF, FORMATS, is_record, read_records
from gpuconsole.engine.clients.result import Result, run_of
from gpuconsole.host.files import read_limited, reading
from gpuconsole.model.encoding import UNREADABLE
from gpuconsole.model.snapshot import Environment, Snapshot

MAX_BYTES = 32 * 2**20
"""The largest result file that is read. 3,000 requests with the times of all their tokens have
about 30 MB."""
ALLOWED = (
    "a gpuconsole snapshot, or a JSON result of vllm bench serve, SGLang bench_serving, AIPerf or"
    " GuideLLM"
)
MAX_RESULTS = 1000
MAX_START_BYTES = 4096
"""The bytes of a file that are searched for the keys of AIPerf."""
MAX_NEIGHBOURS = 20
"""The largest number of files that are searched for the other half of an AIPerf result."""
SAME = 1e-3
"""The largest relative difference between the rates of both files of one run. The files may count
the end of the run a little differently."""


def read_runs(path: Path, data: bytes) -> Snapshot:
    """Return the runs of the result file `path`, whose bytes are `data`. Raises ClientFileError
    with one line, also for a file of an unknown format."""
    runs = [
        run_of(_joined(result, path), str(number))
        for number, result in enumerate(read_results(data), 1)
    ]
    return Snapshot(
        created=runs[-1].started, gpuconsole="", environment=Environment(), runs=runs, trials=[]
    )


def read_results(data: bytes) -> list[Result]:
    """Return the results in the bytes of a file: one or more. Raises ClientFileError."""
    if not data.strip():
        raise ClientFileError(f"the file is empty; allowed: {ALLOWED}")
    check_memory(data)
    objects = _objects(finite_json(data))
    if all(map(is_record, objects)):
        return [read_records(objects)]
    known = next((known for known in FORMATS if all(map(known.recognises, objects))), None)
    if known is None:
        raise ClientFileError(f"no known result; allowed: {ALLOWED}")
    results = [result for fields in objects for result in known.read(fields)]
    if len(results) > MAX_RESULTS:
        raise ClientFileError(f"{len(results)} results in one file; at most {MAX_RESULTS} are read")
    return results


def _joined(result: Result, path: Path) -> Result:
    """Join the two files that AIPerf writes for one run: the summary and the single requests.
    Return `result` unchanged if the other file is not in the folder of `path`."""
    for other in (
        _beside(path)
        if result.client == AIPERF.client and not (result.load and result.requests)
        else ()
    ):
        pairs = (
            (result.tokens_per_s, other.tokens_per_s),
            (result.requests_per_s, other.requests_per_s),
        )
        alike = all(one and two and abs(one - two) <= SAME * max(one, two) for one, two in pairs)
        halves = other.client == result.client and bool(other.requests) != bool(result.requests)
        if halves and alike and (result.answered, result.failed) == (other.answered, other.failed):
            summary, single = (other, result) if result.requests else (result, other)
            missing = {
                name: why
                for name, why in summary.unavailable.items()
                if name != "workload.intervals"
            }
            return msgspec.structs.replace(
                summary, requests=single.requests, started=single.started, unavailable=missing
            )
    return result


def _beside(path: Path) -> Iterator[Result]:
    """Yield the AIPerf results in the other files of the folder of `path`. Unreadable files are
    skipped without an error, because the user did not name these files."""
    with contextlib.suppress(OSError):
        for file in sorted(other for other in path.parent.iterdir() if other.name != path.name)[
            :MAX_NEIGHBOURS
        ]:
            with contextlib.suppress(OSError, ClientFileError):
                with reading(file, regular=True) as opened:
                    start = opened.read(MAX_START_BYTES)
                if any(
                    key in start
                    for key in (b'"request_start_ns"', b'"request_throughput"', b'"aiperf_version"')
                ):
                    yield from read_results(read_limited(file, MAX_BYTES, regular=True))


def _objects(data: bytes) -> list[Fields]:
    """Return the JSON objects of the file: one object, or one object on each line. Raises
    ClientFileError."""
    kind = dict[str, msgspec.Raw]
    try:
        return [Fields(msgspec.json.decode(data, type=kind))]
    except UNREADABLE as error:
        problem = error
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) < 2 or isinstance(problem, msgspec.ValidationError):
        raise ClientFileError(f"not JSON with an object at its top ({problem}); allowed: {ALLOWED}")
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            objects.append(Fields(msgspec.json.decode(line, type=kind)))
        except UNREADABLE as error:
            if (
                number == len(lines)
                and isinstance(error, msgspec.DecodeError)
                and not isinstance(error, msgspec.ValidationError)
            ):
                raise ClientFileError(f"line {number}, the last one, is cut off: {error}") from None
            raise ClientFileError(
                f"line {number} is not a JSON object ({error}); allowed: {ALLOWED}"
            ) from None
    return objects
