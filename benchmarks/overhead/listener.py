"""The console's end while overhead is measured: decodes the worker's messages, keeps the session,
reads it twice a second."""

from __future__ import annotations

import selectors
import socket
import sys
import time

from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_view
from gpuconsole.wire.events import RunOpened, decode_event


def main() -> None:
    ours = socket.socket(fileno=int(sys.argv[1]))
    state = SessionState()
    state.apply(RunOpened(time.monotonic(), "1", "overhead", "training.gpt", {}, "cpu"))
    selector = selectors.DefaultSelector()
    selector.register(ours, selectors.EVENT_READ)
    pending, looked = b"", 0.0
    while True:
        if selector.select(0.5):
            chunk = ours.recv(1 << 20)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                state.apply(decode_event(line))
        if time.monotonic() - looked > 0.5:
            looked = time.monotonic()
            make_view(
                state,
                now=time.monotonic(),
                environment=state.environment,
                device="cpu",
                probing="",
                recording=False,
                recording_to="",
                ended=False,
            )


if __name__ == "__main__":
    main()
