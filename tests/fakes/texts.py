"""Texts in a dict, and changes on demand."""

from collections.abc import Awaitable, Callable, Sequence

import anyio

from gateway.domain.errors import SoulUnreadable


class FakeTexts:
    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.watching = anyio.Event()
        self._changed: Callable[[str], Awaitable[None]] | None = None

    async def read(self, path: str) -> str:
        try:
            return self.texts[path]
        except KeyError as error:
            raise SoulUnreadable(f"{path} cannot be read: No such file") from error

    async def watch(self, paths: Sequence[str], changed: Callable[[str], Awaitable[None]]) -> None:
        self._changed = changed
        self.watching.set()
        await anyio.sleep_forever()

    async def write(self, path: str, text: str | None) -> None:
        if text is None:
            del self.texts[path]
        else:
            self.texts[path] = text
        assert self._changed is not None
        await self._changed(path)
