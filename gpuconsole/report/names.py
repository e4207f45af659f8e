"""Names for fixed columns: names of other programs, and short names for many devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def spans(devices: Iterable[str]) -> str:
    """`gpu:0-3,5` for the ids of devices, in the order of their numbers."""
    texts: list[str] = []
    before = ""
    for head, low, high in _runs(sorted(_parts(device) for device in devices)):
        number = f"{low}-{high}" if high > low else str(low) if low >= 0 else ""
        texts.append(f"{',' if texts else ''}{number}" if head == before and number else f"{' ' if texts else ''}{head}{number}")
        before = head
    return "".join(texts)


def _parts(device: str) -> tuple[str, int]:
    """`gpu:` and 3. -1: the id has no number."""
    head, colon, tail = device.rpartition(":")
    return (head + colon, int(tail)) if tail.isdecimal() else (device, -1)


def _runs(parts: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Ranges of consecutive numbers with the same prefix."""
    run: tuple[str, int, int] | None = None
    for head, number in parts:
        if run is not None and head == run[0] and number == run[2] + 1 and number > 0:
            run = (head, run[1], number)
            continue
        if run is not None:
            yield run
        run = (head, number, number)
    if run is not None:
        yield run
