"""A fake dcgm-exporter: the page that a test wrote, over a real socket; or one of the ways in which
a server fails."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

Values = dict[str, dict[str, float | str]]


def dcgm_page(values: Values, **extra: str) -> str:
    """`values` by UUID and field, as dcgm-exporter writes them: its types and labels, numbers as
    they are given."""
    names = sorted({name for fields in values.values() for name in fields})
    lines = []
    for name in names:
        lines += [
            f"# HELP {name} help",
            f"# TYPE {name} {'counter' if 'VIOLATION' in name or 'TOTAL' in name else 'gauge'}",
        ]
        for index, (uuid, fields) in enumerate(values.items()):
            labels = {
                "gpu": str(index),
                "UUID": uuid,
                "device": f"nvidia{index}",
                "modelName": "NVIDIA A100-SXM4-80GB",
                **extra,
            }
            if name in fields:
                inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
                lines.append(f"{name}{{{inner}}} {fields[name]}")
    return "\n".join(lines) + "\n"


class FakeDcgm:
    """Answers with `status` and `page`; with `hangs` set, only after it is cleared. `asked` counts
    requests."""

    def __init__(self, page: str = "") -> None:
        self.page: str | bytes = page
        self.status = 200
        self.asked = 0
        self.go_on = threading.Event()
        self.go_on.set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.asked += 1
                fake.go_on.wait(30)
                body = fake.page if isinstance(fake.page, bytes) else fake.page.encode()
                try:
                    self.send_response(fake.status if self.path == "/metrics" else 404)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    return  # whoever asked has given up

            def log_message(self, format: str, *args: object) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def hang(self) -> None:
        self.go_on.clear()

    def __enter__(self) -> FakeDcgm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
