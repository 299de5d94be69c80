"""Texts in a dict."""

from gateway.domain.errors import SoulUnreadable


class FakeTexts:
    def __init__(self, **texts: str) -> None:
        self.texts = texts

    async def read(self, path: str) -> str:
        try:
            return self.texts[path]
        except KeyError as error:
            raise SoulUnreadable(f"{path} cannot be read: No such file") from error
