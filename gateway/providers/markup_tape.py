"""Text that arrives in pieces, read as if it were all there: a reader waits by yielding.

Nothing that is decided here depends on where the pieces were cut.
"""

import re
from collections.abc import Collection, Generator
from typing import TypeVar

T = TypeVar("T")
Waits = Generator[None, None, T]

_SPACE = re.compile(r"[ \t\r\n]*")


class NotMarkup(Exception):
    """What is read cannot be a tool call."""


class Tape:
    """Keeps what is not read yet, and what was taken since the last mark."""

    def __init__(self) -> None:
        self.is_over = False
        self.steps = 0  # how often something was taken
        self._text = ""
        self._at = 0
        self._taken: list[str] = []

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def mark(self) -> None:
        self._taken.clear()

    def taken(self) -> str:
        return "".join(self._taken)

    def has_more(self) -> Waits[bool]:
        while self._at == len(self._text):
            if self.is_over:
                return False
            yield
        return True

    def peek(self) -> str:
        """The next character, where there is one."""
        return self._text[self._at]

    def begins(self, beginning: re.Pattern[str]) -> bool:
        return beginning.match(self._text, self._at) is not None

    def take(self, count: int) -> str:
        self.steps += 1
        piece = self._text[self._at : self._at + count]
        self._at += len(piece)
        self._taken.append(piece)
        return piece

    def take_to(self, stop: re.Pattern[str]) -> str:
        """At least one character, and no further than the next that `stop` finds."""
        found = stop.search(self._text, self._at + 1)
        return self.take((found.start() if found else len(self._text)) - self._at)

    def run(self, characters: re.Pattern[str]) -> Waits[str]:
        """All that comes of these characters, which may be none."""
        pieces: list[str] = []
        while True:
            found = characters.match(self._text, self._at)
            pieces.append(self.take(found.end() - self._at if found else 0))
            if self._at < len(self._text) or self.is_over:
                return "".join(pieces)
            yield

    def is_next(self, literals: Collection[str]) -> Waits[str]:
        """Which of these comes next; "" as soon as none can. None may begin another."""
        longest = max(map(len, literals), default=0)
        while True:
            rest = self._text[self._at : self._at + longest]
            could = [literal for literal in literals if literal.startswith(rest[: len(literal)])]
            if not could:
                return ""
            if len(could[0]) <= len(rest):
                return could[0]
            if self.is_over:
                return ""
            yield

    def next_of(self, literals: Collection[str]) -> Waits[str]:
        """The same, and takes it."""
        found = yield from self.is_next(literals)
        if found:
            self.take(len(found))
        return found

    def space(self) -> Waits[str]:
        return self.run(_SPACE)

    def after_space(self, literals: Collection[str]) -> Waits[str]:
        """The same, behind white space that is taken in any case."""
        yield from self.space()
        return (yield from self.next_of(literals))

    def until(self, literal: str) -> Waits[str | None]:
        """All before this, which is taken too. None if it never comes: then all is taken."""
        pieces: list[str] = []
        while (end := self._text.find(literal, self._at)) < 0:
            keep = 0 if self.is_over else len(literal) - 1
            pieces.append(self.take(max(0, len(self._text) - self._at - keep)))
            if self.is_over:
                return None
            yield
        pieces.append(self.take(end - self._at))
        self.take(len(literal))
        return "".join(pieces)

    def short(self, literal: str, most: int = 256) -> Waits[str]:
        """The same for what is never long. Raises NotMarkup, with nothing taken."""
        while (end := self._text.find(literal, self._at, self._at + most + len(literal))) < 0:
            if self.is_over or len(self._text) - self._at >= most + len(literal):
                raise NotMarkup
            yield
        said = self.take(end - self._at)
        self.take(len(literal))
        return said
