"""Read the fields of a JSON object that another program wrote. Each field is decoded only when it
is read. So fields that nobody reads (prompts, answers) need no further memory."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec

from gpuconsole.model.encoding import MAX_NUMBER, UNREADABLE
from gpuconsole.model.text import cut, visible

NOT_FINITE = re.compile(rb"(?<=[\[,:\s])-?(?:Infinity|NaN)(?=[\s,\]}])")
MAX_TEXT_LENGTH = 200
MAX_MEMORY_RATIO = 8
MIN_MEMORY_BYTES = 96 * 2**20
"""A file may take eight times its size in memory; a small file may always take so much."""
CLOCKS_S = 0.01
MAX_SECONDS = 1e8
"""The longest time that is accepted: three years."""
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


class ClientFileError(ValueError):
    """A result file that cannot be read. The message is one line."""


def finite_json(data: bytes) -> bytes:
    """Replace Infinity and NaN in `data` by null: Python writes both words, but JSON does not allow
    them."""
    if b"Infinity" not in data and b"NaN" not in data:
        return data
    replaced, end = bytearray(), 0
    # re.sub would keep each piece as an object of its own
    for found in NOT_FINITE.finditer(data):
        replaced += memoryview(data)[end : found.start()]
        replaced += b"null"
        end = found.end()
    replaced += memoryview(data)[end:]
    return bytes(replaced)


def check_memory(data: bytes) -> None:
    """Raise ClientFileError for a file whose decoding could take far more memory than the file: one
    of millions of numbers, lists, objects or keys. The bytes of an object are those of CPython.

    An object inside an object stays undecoded. Such an object has two keys or more in the files of
    the clients.
    """
    numbers, lists, objects, keys = (data.count(mark) for mark in (b",", b"[", b"{", b":"))
    needed = 32 * numbers + 64 * lists + 150 * max(keys - 2 * objects, objects)
    if needed > max(MIN_MEMORY_BYTES, MAX_MEMORY_RATIO * len(data)):
        raise ClientFileError(
            f"decoding the file could take {needed / 2**20:.0f} MiB of memory, more than"
            f" {MAX_MEMORY_RATIO} times its size"
        )


class Fields:
    """A JSON object. A path lists the keys from object to object: `metrics.ttft.mean`. The paths
    `a|b` mean the first path with a value. The value of a missing field or a null is None. A field
    of another type raises ClientFileError."""

    def __init__(self, raw: dict[str, msgspec.Raw], name: str = "") -> None:
        self.raw, self._name = raw, name
        self._inner: dict[str, Fields] = {}

    def inner(self, path: str) -> Fields:
        """Return the object at a path; an object without fields if the path leads to none. The
        empty path means this object."""
        key, _, rest = path.partition(".")
        if key and key not in self._inner:
            self._inner[key] = Fields(
                self._decoded(key, dict[str, msgspec.Raw]) or {}, f"{self._name}{key}."
            )
        return self._inner[key].inner(rest) if key else self

    def has(self, path: str) -> bool:
        """Return whether the field exists, with a value or null."""
        way, _, key = path.rpartition(".")
        with contextlib.suppress(ClientFileError):
            return key in self.inner(way).raw
        return False

    def value(self, paths: str, kind: Any) -> Any:
        """Return the field as a value of type `kind`; None if no path has a value."""
        for path in paths.split("|"):
            way, _, key = path.rpartition(".")
            if (value := self.inner(way)._decoded(key, kind)) is not None:
                return value
        return None

    def _decoded(self, key: str, kind: Any) -> Any:
        try:
            return msgspec.json.decode(self.raw[key], type=kind | None) if key in self.raw else None
        except UNREADABLE as error:
            raise ClientFileError(f"{self._name}{key}: {visible(str(error))}") from None

    def text(self, paths: str) -> str:
        """Return a text; empty if there is no text. A long text is cut."""
        return cut(visible(self.value(paths, str) or ""), MAX_TEXT_LENGTH)

    def number(self, paths: str) -> float | None:
        """Return a number of 0 or more; None if no path has a value."""
        number: float | None = self.value(paths, float)
        if number is not None and not 0 <= number <= MAX_NUMBER:
            raise ClientFileError(f"{self._name}{paths}: {number} must be 0 or more")
        return number

    def count(self, paths: str) -> int | None:
        number = self.number(paths)
        return None if number is None else round(number)

    def limit(self, paths: str) -> float | None:
        """Return the first number above 0 at the paths; None if there is none. Raises nothing: a
        list or a word such as `inf` means that there is no limit."""
        for path in paths.split("|"):
            with contextlib.suppress(ClientFileError):
                value = self.value(path, object)
                if isinstance(value, int | float) and 0 < value <= MAX_NUMBER:
                    return value
        return None

    def seconds(self, paths: str) -> float | None:
        """Return a time in seconds. A time may be the difference of two clocks and a little below
        0: such a time counts as 0."""
        for path in paths.split("|"):
            number: float | None = self.value(path, float)
            if number is not None:
                if not -CLOCKS_S <= number * self.unit(path) <= MAX_SECONDS:
                    raise ClientFileError(f"{self._name}{path}: {number} is no time")
                return max(0.0, number * self.unit(path))
        return None

    def unit(self, path: str) -> float:
        """Return the unit of a field in seconds. The unit is in the field `unit` of the same
        object, or in a key of the path (`time_ms`). Without a unit the answer is 1."""
        own, beside = re.search(r"_(ns|us|ms)\b", path), f"{path.rpartition('.')[0]}.unit"
        name = self.text(beside) if "." in path and self.has(beside) else own[1] if own else "s"
        if name not in UNITS:
            raise ClientFileError(f"{name!r} is no unit of time; known: {', '.join(UNITS)}")
        return UNITS[name]

    def numbers(self, path: str) -> list[float]:
        """Return a list of numbers of 0 or more, with 0 for null; empty if there is no list."""
        values = [
            0.0 if number is None else number
            for number in self.value(path, list[float | None]) or []
        ]
        if not all(0 <= number <= MAX_SECONDS for number in values):
            raise ClientFileError(f"{self._name}{path}: a number is not in 0 to {MAX_SECONDS:g}")
        return values

    def sums(self, path: str) -> list[float]:
        """Return the sum of each list in a list. Decodes one list after the other, because all
        lists together are large."""
        return [
            sum(Fields({path: raw}, self._name).numbers(path))
            for raw in self.value(path, list[msgspec.Raw]) or []
        ]

    def each(self, path: str) -> list[Fields]:
        """Return the objects of a list; empty if there is no list."""
        found = self.value(path, list[dict[str, msgspec.Raw]]) or []
        return [Fields(raw, f"{self._name}{path}[{place}].") for place, raw in enumerate(found)]
