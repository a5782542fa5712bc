"""An HTTP endpoint of a program's own metrics, without further libraries."""

from __future__ import annotations

import logging
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from holdfast.errors import ConfigError
from holdfast.interfaces.metrics.prometheus import CONTENT_TYPE, to_prometheus
from holdfast.store.metric_sources import metrics_source
from holdfast.store.store import Store

_log = logging.getLogger("holdfast.metrics")
_SECONDS = 10.0


def _is_local(host: str) -> bool:
    """Whether a `Host` names this machine for itself."""
    name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
    return name in ("localhost", "[::1]") or re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None


class MetricsEndpoint:
    """Serves the metrics of stores at `/metrics`, from a thread: `with MetricsEndpoint(store, port=9464): …`.

    Anybody who reaches the address can read them; by default that is this machine. They have URLs of stores, names of
    hooks and jobs, and numbers. At an address of this machine only, requests to other names are refused. To ask for a
    token, use `holdfast serve`.
    """

    def __init__(self, *stores: Store, host: str = "127.0.0.1", port: int = 0) -> None:
        for store in stores:
            metrics_source(store)  # refuses an identity's view
        local = _is_local(f"[{host}]" if ":" in host else host)

        class Handler(BaseHTTPRequestHandler):
            timeout = _SECONDS

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                if local and not _is_local(self.headers.get("Host", "")):
                    self.send_error(421)  # a page elsewhere may have its own name point here
                    return
                body = to_prometheus(*(store.maintenance.metrics() for store in stores)).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                _log.debug(format, *args)

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"the address cannot be used: {error.strerror or error}",
                where=f"{host}:{port}",
                hint="Choose another port, or 0 for any",
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="holdfast-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
