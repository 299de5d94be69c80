"""A platform on loopback that answers by a script, and notes what it is asked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from threading import Lock, Thread

from gateway.cli.platform_script import Answer, decoded, fits

UNKNOWN = Answer(method="", url="", status=404)


@dataclass(frozen=True, slots=True)
class Heard:
    method: str
    url: str
    body: object
    status: int  # that it was answered


@dataclass(slots=True)
class Platform:
    answers: Sequence[Answer]
    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    _given: set[int] = field(default_factory=set)  # answers that others follow
    _lock: Lock = field(default_factory=Lock)

    def answer(self, method: str, url: str, body: bytes) -> Answer:
        with self._lock:
            fitting = [
                place
                for place, one in enumerate(self.answers)
                if one.method == method and fits(one.url, url)
            ]
            left = [place for place in fitting if place not in self._given]
            self._given.update(left[:1])
            place = next(iter(left[:1] or fitting[-1:]), None)
            answer = UNKNOWN if place is None else self.answers[place]
            self.heard.append(Heard(method, url, decoded(body), answer.status))
            return answer


@contextmanager
def platform(answers: Sequence[Answer]) -> Iterator[Platform]:
    """Its threads end with it."""
    it = Platform(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = it.answer(self.command, self.path, body)
            content = dumps(answer.body).encode() if answer.body is not None else b""
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  # as the library calls them

        def log_message(self, format: str, *args: object) -> None:  # its name there
            """What was said is shown by whoever plays."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    it.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
