"""Takes down the bytes of a provider as they come, for a run that may be replayed."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from gateway.domain.journal import OVERRUN, Record
from gateway.domain.ports import Http, HttpAnswer, HttpCall, HttpFailed

# What the decoding of an answer looks at, and nothing else.
KEPT_HEADERS = ("content-type", "content-encoding", "retry-after", "retry-after-ms")


class Recording:
    """Implements the Http port over another one. A read is at most `most` bytes, so that a stop has
    its place between two of them. `why_left` is asked of an answer that was not read to its end."""

    def __init__(
        self,
        http: Http,
        record: Record,
        most: int,
        why_left: Callable[[], tuple[str, str]] = lambda: ("cut", ""),
    ) -> None:
        self._http, self._record, self._most = http, record, most
        self._why_left = why_left

    def send(self, call: HttpCall) -> AbstractAsyncContextManager[HttpAnswer]:
        return self._send(call)

    @asynccontextmanager
    async def _send(self, call: HttpCall) -> AsyncIterator[HttpAnswer]:
        record = self._record
        record("sent", len(call.body))
        answer: _Answer | None = None
        try:
            async with self._http.send(call) as inner:
                kept = {name: inner.headers[name] for name in KEPT_HEADERS if name in inner.headers}
                record("head", inner.status, kept)
                answer = _Answer(inner, record, self._most)
                yield answer
        except HttpFailed as error:
            if answer is None:
                record("end", error.kind, str(error))
            raise
        except BaseException:
            if answer is None:
                record("end", "cut", "")
            raise
        finally:
            how, size = self._why_left()
            # Of a whole answer the last byte may be read before it is known to be too long.
            if answer is not None and (how == OVERRUN or not answer.has_ended):
                record("end", how, size)


class _Answer:
    def __init__(self, inner: HttpAnswer, record: Record, most: int) -> None:
        self._inner, self._record, self._most = inner, record, most
        self._rest = b""
        self.has_ended = False

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._inner.headers

    @property
    def is_over(self) -> bool:
        return not self._rest and self._inner.is_over

    async def read_some(self) -> bytes:
        try:
            data = self._rest or await self._inner.read_some()
        except HttpFailed as error:
            self.has_ended = True
            self._record("end", error.kind, str(error))
            raise
        data, self._rest = data[: self._most], data[self._most :]
        if data:
            self._record("bytes", data)
        elif not self.has_ended:
            self.has_ended = True
            self._record("end", "complete", "")
        return data
