"""Result files of other clients: `vllm bench serve`, SGLang's bench_serving, AIPerf and GuideLLM. A file is recognised by its content, never by its name.

Each format has a file here, which makes a `Result` of it; `run_of` makes a run of a result. Names and meanings of the fields come from the programs that
write them; the versions that were read stand in the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuconsole.engine.clients import aiperf, guidellm, sglang, vllm
from gpuconsole.engine.clients.fields import ClientFileError, Fields, finite_json
from gpuconsole.engine.clients.result import Result, run_of
from gpuconsole.model.encoding import UNREADABLE
from gpuconsole.model.files import read_regular, read_start
from gpuconsole.model.snapshot import Environment, Snapshot

MOST_BYTES = 256 * 2**20
"""The largest result file that is read. 10,000 requests with the times of all their tokens have about 100 MB."""
ALLOWED = f"a gpuconsole snapshot, or a JSON result of {vllm.CLIENT}, {sglang.CLIENT}, {aiperf.CLIENT} or {guidellm.CLIENT}"
MOST_RESULTS = 1000
MOST_BESIDE = 20
"""Files of a folder in which the other half of a result of AIPerf is looked for."""


class _Format(NamedTuple):
    """One format: whether an object is of it, and how its objects become results."""

    recognises: Callable[[Fields], bool]
    read: Callable[[Sequence[Fields]], list[Result]]


FORMATS = (
    _Format(vllm.recognises, lambda objects: [vllm.read(fields) for fields in objects]),
    _Format(sglang.recognises, lambda objects: [sglang.read(fields) for fields in objects]),
    _Format(aiperf.recognises, lambda objects: [aiperf.read(fields) for fields in objects]),
    _Format(aiperf.is_record, lambda objects: [aiperf.read_records(objects)]),
    _Format(guidellm.recognises, lambda objects: [result for fields in objects for result in guidellm.read(fields)]),
)


def read_runs(path: Path, data: bytes) -> Snapshot:
    """The runs of a result file with these bytes. Raises ClientFileError, with one line, also for a file that is of no known format.

    AIPerf writes two files for a run, and each has what the other lacks. So the other one is looked for beside `path`, by its content.
    """
    results = [aiperf.joined(result, lambda: _beside(path)) if result.client == aiperf.CLIENT else result for result in read_results(data)]
    runs = [run_of(result, str(number)) for number, result in enumerate(results, 1)]
    return Snapshot(created=runs[-1].started, gpuconsole="", environment=Environment(), runs=runs, trials=[])


def read_results(data: bytes) -> list[Result]:
    """Return the results that the bytes of a file hold: one or more. Raises ClientFileError."""
    if not data.strip():
        raise ClientFileError(f"the file is empty; allowed: {ALLOWED}")
    objects = _objects(finite_json(data))
    formats = [next((known for known in FORMATS if known.recognises(fields)), None) for fields in objects]
    known = formats[0]
    if known is None or any(other is not known for other in formats):
        raise ClientFileError(f"no known result; allowed: {ALLOWED}")
    results = known.read(objects)
    if len(results) > MOST_RESULTS:
        raise ClientFileError(f"{len(results)} results in one file; at most {MOST_RESULTS} are read")
    return results


def _beside(path: Path) -> Iterator[Result]:
    """The results of AIPerf in the other files of the folder. What cannot be read is passed over: nobody has named it."""
    try:
        files = sorted(other for other in path.parent.iterdir() if other.name != path.name)[:MOST_BESIDE]
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError, ClientFileError):
            if aiperf.may_be(read_start(file)):
                yield from read_results(read_regular(file, MOST_BYTES))


def _objects(data: bytes) -> list[Fields]:
    """The JSON objects of the file: one, or one on each line. Raises ClientFileError."""
    try:
        return [Fields.of(data)]
    except UNREADABLE as error:
        problem = error
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) < 2 or isinstance(problem, msgspec.ValidationError):
        raise ClientFileError(f"not JSON with an object at its top ({problem}); allowed: {ALLOWED}")
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            objects.append(Fields.of(line))
        except UNREADABLE as error:
            if number == len(lines) > 1 and isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
                raise ClientFileError(f"line {number}, the last one, is cut off: {error}") from None
            raise ClientFileError(f"line {number} is not a JSON object ({error}); allowed: {ALLOWED}") from None
    return objects
