"""HTTP for those who watch a worker: /metrics, and whether it is well (/healthz) and takes work (/readyz)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from holdfast.engine.metrics import EngineCollector
from holdfast.engine.telemetry import Telemetry
from holdfast.store.protocol import Store

Look = Callable[[], Sequence[str]]
_JSON = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]


class MetricsServer:
    """Serves from threads of its own, on this machine only unless told otherwise.

    `problems` says what is wrong with the worker, `unready` what keeps it from taking work.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        store: Store,
        *,
        port: int,
        address: str = "127.0.0.1",
        problems: Look = tuple,
        unready: Look = tuple,
    ) -> None:
        registry = CollectorRegistry()
        self._collector = EngineCollector(telemetry, store)
        registry.register(self._collector)
        ProcessCollector(registry=registry)
        self._metrics: Any = make_wsgi_app(registry)
        self._looks = {"/healthz": problems, "/readyz": unready}
        self._server = make_server(address, port, self._answer, _server_for(address), _Quiet)
        self.port: int = self._server.server_port
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="holdfast-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
        self._collector.close()

    def _answer(self, environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environment.get("PATH_INFO", "")
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environment, start)
            return answer
        look = self._looks.get(path)
        if look is None:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there are /metrics, /healthz and /readyz\n"]
        problems = list(look())
        start("503 Service Unavailable" if problems else "200 OK", list(_JSON))
        return [msgspec.json.encode({"status": "failing" if problems else "ok", "problems": problems}) + b"\n"]


def _server_for(address: str) -> type[WSGIServer]:
    class Server(ThreadingMixIn, WSGIServer):
        """One thread for each request: a scrape that waits for the store keeps nobody from asking how we are."""

        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    return Server


class _Quiet(WSGIRequestHandler):
    timeout = 10  # of somebody who connects and says nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has
        """Nothing: who scrapes is of no interest to the log."""
