"""What a api may have beyond the `SessionApi` interface: a beginning on the event loop."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Opens(Protocol):
    """A api that has to be started on the event loop."""

    async def open(self) -> None: ...


@runtime_checkable
class Warms(Protocol):
    """A api that can make its next start quicker."""

    async def warm(self) -> None: ...
