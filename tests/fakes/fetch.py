"""A guarded way out that answers from a script, and remembers what it was asked."""

from collections.abc import Callable

import anyio

from gateway.domain.errors import Denied
from gateway.domain.ports import Fetched, FetchGrant, FetchRequest, HttpFailed

Said = Fetched | Denied | HttpFailed


def page(body: str | bytes = "hello", status: int = 200) -> Fetched:
    raw = body.encode() if isinstance(body, str) else body
    return Fetched(status, (("content-type", "text/plain"),), raw)


class FakeFetch:
    """Every ask gets what `answer` makes of it. With a `gate`, each waits for it."""

    def __init__(
        self,
        answer: Callable[[FetchRequest], Said] = lambda _: page(),
        gate: anyio.Event | None = None,
    ) -> None:
        self._answer, self._gate = answer, gate
        self.asked: list[tuple[FetchRequest, FetchGrant]] = []
        self.came = anyio.Event()
        self.cancelled = 0

    def open(self) -> None:
        assert self._gate is not None
        self._gate.set()

    async def fetch(self, ask: FetchRequest, leave: FetchGrant) -> Fetched:
        self.asked.append((ask, leave))
        self.came.set()
        if self._gate is not None:
            try:
                await self._gate.wait()
            except BaseException:
                self.cancelled += 1
                raise
        said = self._answer(ask)
        if isinstance(said, Fetched):
            return said
        raise said
