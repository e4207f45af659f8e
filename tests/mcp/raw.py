"""A client of `gpuconsole mcp` that writes what it wants, line by line: for clients that
misbehave."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "0"},
}


class RawClient:
    """One process of `gpuconsole mcp ARGS`, and its answers. `close` waits for its end."""

    def __init__(self, folder: Path, *args: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gpuconsole",
                "mcp",
                *(() if "--connect" in args else ("--device", "cpu")),
                *args,
            ],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"stderr-{os.urandom(4).hex()}").open("w+b"),
            env={**os.environ, **(environment or {})},
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, method: str, params: object) -> int:
        self._number += 1
        self.write(
            json.dumps(
                {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
            ).encode()
            + b"\n"
        )
        return self._number

    def answer(self, number: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """The answer to a request. Everything before it is dropped."""
        while True:
            line = self._lines.get(timeout=timeout_s)
            assert line, "the server has ended"
            message = json.loads(line)
            if message.get("id") == number:
                return message  # type: ignore[no-any-return]

    def hello(self) -> dict[str, Any]:
        answer = self.answer(self.send("initialize", HELLO))
        self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return answer["result"]  # type: ignore[no-any-return]

    def call(self, tool: str, timeout_s: float = 60.0, **arguments: object) -> dict[str, Any]:
        """The result of a tool; `error` holds the text of a refusal. The text that an agent reads
        is in `text`."""
        result = self.answer(
            self.send("tools/call", {"name": tool, "arguments": arguments}), timeout_s
        )["result"]
        text = result["content"][0]["text"]
        return {
            "text": text,
            "error": text if result.get("isError") else "",
            **(result.get("structuredContent") or {}),
        }

    def vanish(self) -> None:
        """Close both pipes, as the kernel does for a client that is killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()

    def close(self) -> int:
        self.vanish()
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
