"""A collector of traces that unpacks and reads what it is sent; it may refuse, or never answer."""

import gzip
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from anyio import CancelScope, to_thread
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class FakeCollector:
    """`statuses` are given one after another, then 200; `is_silent`: nothing is ever answered."""

    def __init__(self, *statuses: int, is_silent: bool = False) -> None:
        self.statuses, self.is_silent = list(statuses), is_silent
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[Mapping[str, str]] = []
        self.bodies: list[bytes] = []
        self.tries = 0
        self.is_over = threading.Event()
        self.url = ""

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(span: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes
    }


@asynccontextmanager
async def collecting(collector: FakeCollector) -> AsyncIterator[FakeCollector]:
    """On a port of its own, in threads."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.tries += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.is_silent:
                collector.is_over.wait(30)
                return
            status = collector.statuses.pop(0) if collector.statuses else 200
            if status == 200:
                raw = gzip.decompress(body)
                collector.bodies.append(raw)
                collector.headers.append(dict(self.headers.items()))
                collector.requests.append(ExportTraceServiceRequest.FromString(raw))
                assert self.path == "/v1/traces"
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = await to_thread.run_sync(ThreadingHTTPServer, ("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    await to_thread.run_sync(thread.start)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        collector.is_over.set()
        with CancelScope(shield=True):
            await to_thread.run_sync(server.shutdown)
            server.server_close()
