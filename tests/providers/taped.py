"""How these tests read off a tape: pieces go in, an answer and what is left come out."""

from collections.abc import Callable
from typing import Any

from gateway.providers.markup import Tape, Waits


def read(pieces: list[str], ask: Callable[[Tape], Waits[Any]]) -> tuple[Any, str]:
    """The answer, and what is left of the text behind it."""
    tape = Tape()
    waiting = list(pieces)
    asking = ask(tape)
    while True:
        try:
            next(asking)
        except StopIteration as stopped:
            rest = tape.take(10**9)
            return stopped.value, rest + "".join(waiting)
        if waiting:
            tape.feed(waiting.pop(0))
        else:
            tape.is_over = True
