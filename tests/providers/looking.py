"""How these tests read ahead: pieces go in, an answer and what is left come out."""

from collections.abc import Callable
from typing import Any

from gateway.providers.markup import Lookahead, Waits


def read(pieces: list[str], ask: Callable[[Lookahead], Waits[Any]]) -> tuple[Any, str]:
    """The answer, and what is left of the text behind it."""
    ahead = Lookahead()
    waiting = list(pieces)
    asking = ask(ahead)
    while True:
        try:
            next(asking)
        except StopIteration as stopped:
            rest = ahead.consume(10**9)
            return stopped.value, rest + "".join(waiting)
        if waiting:
            ahead.feed(waiting.pop(0))
        else:
            ahead.is_over = True
