"""The fields of a JSON object from elsewhere: read one by one, so that what nobody asks for (prompts, answers) takes no memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from gpuconsole.model.encoding import UNREADABLE
from gpuconsole.model.text import cut, visible

Kind = TypeVar("Kind")
NOT_FINITE = re.compile(rb"(?<=[\[,:\s])-?(?:Infinity|NaN)(?=[\s,\]}])")
LONGEST = 200
CLOCKS_S = 0.01
MOST_SECONDS = 1e8
"""The longest time that counts as one: three years."""


class ClientFileError(ValueError):
    """A result file that cannot be read. The message is one line."""


def finite_json(data: bytes) -> bytes:
    """`data` with null in place of Infinity and NaN, which Python writes and JSON does not have."""
    return NOT_FINITE.sub(b"null", data) if b"Infinity" in data or b"NaN" in data else data


class Fields:
    """An object. A field that is missing or null reads None; a field of another kind raises ClientFileError."""

    def __init__(self, raw: dict[str, msgspec.Raw], name: str = "") -> None:
        self._raw, self._name = raw, name

    @classmethod
    def of(cls, data: bytes | msgspec.Raw, name: str = "") -> Fields:
        """Raises one of UNREADABLE where `data` is no JSON object."""
        return cls(msgspec.json.decode(data, type=dict[str, msgspec.Raw]), name)

    def __contains__(self, key: str) -> bool:
        return key in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def value(self, key: str, kind: type[Kind]) -> Kind | None:
        """The field `key`. Raises ClientFileError where it is not of this kind."""
        raw = self._raw.get(key)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=kind | None)
        except UNREADABLE as error:
            raise ClientFileError(f"{self._name}{key}: {visible(str(error))}") from None

    def text(self, key: str) -> str:
        """A text; empty where there is none. A long text is cut."""
        return cut(visible(self.value(key, str) or ""), LONGEST)

    def number(self, key: str) -> float | None:
        """A number of 0 or more. Raises ClientFileError for another value."""
        number = self.value(key, float)
        if number is not None and not 0 <= number < math.inf:
            raise ClientFileError(f"{self._name}{key}: {number} must be 0 or more")
        return number

    def number_or_word(self, key: str) -> float | str | None:
        """A number, or a text such as `inf`."""
        value = self.value(key, object)
        return value if isinstance(value, int | float | str) else None

    def count(self, key: str) -> int | None:
        number = self.number(key)
        return None if number is None else round(number)

    def seconds(self, key: str, scale: float = 1.0) -> float | None:
        """A time in seconds, where the field counts units of `scale` seconds. Raises ClientFileError for what is no time. A difference of two clocks may be a
        little below 0: it counts as 0."""
        number = self.value(key, float)
        if number is not None and -CLOCKS_S <= number * scale <= 0:
            return 0.0
        if number is not None and not 0 < number * scale <= MOST_SECONDS:
            raise ClientFileError(f"{self._name}{key}: {number} is no time")
        return None if number is None else number * scale

    def duration(self, key: str) -> float:
        """The seconds of the run: more than 0. Raises ClientFileError."""
        seconds = self.seconds(key)
        if not seconds:
            raise ClientFileError(f"{self._name}{key}: must be the seconds of the run, more than 0")
        return seconds

    def numbers(self, key: str) -> list[float]:
        """A list of numbers of 0 or more, 0 for null. Empty where there is no list. Raises ClientFileError."""
        values = [0.0 if number is None else number for number in self.value(key, list[float | None]) or []]
        if not all(0 <= number <= MOST_SECONDS for number in values):
            raise ClientFileError(f"{self._name}{key}: a number is not in 0 to {MOST_SECONDS:g}")
        return values

    def inner(self, key: str) -> Fields:
        """The object in the field `key`; without fields where there is none. Raises ClientFileError where it is no object."""
        return Fields(self.value(key, dict[str, msgspec.Raw]) or {}, f"{self._name}{key}.")

    def each(self, key: str) -> list[Fields]:
        """The objects of a list; empty where there is none. Raises ClientFileError."""
        found: Any = self.value(key, list[dict[str, msgspec.Raw]]) or []
        return [Fields(raw, f"{self._name}{key}[{place}].") for place, raw in enumerate(found)]

    def raws(self, key: str) -> list[msgspec.Raw]:
        """The undecoded items of a list; empty where there is none. Raises ClientFileError."""
        return self.value(key, list[msgspec.Raw]) or []
