"""Whether a run goes in circles: the same calls again and again, and the same results for them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.domain.ports import Decode


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def signature(tool: str, arguments: str, decode: Decode) -> str:
    """The same for the same tool with the same arguments, however they are written."""
    try:
        value = decode(arguments.strip() or "{}")
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        canonical = arguments.strip()
    return f"{tool}:{digest(canonical)}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that a model asks for."""

    id: str
    signature: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """A call that gave this result so often, turn after turn, and was refused or not since."""

    signature: str
    result: str
    count: int = 1
    was_refused: bool = False


@dataclass(frozen=True, slots=True)
class Circles:
    """What of a run's turns and calls has to be remembered to notice that it goes in circles."""

    repeats: tuple[Repeat, ...] = ()
    turns: tuple[str, ...] = ()  # signatures, the last ones
    reported: frozenset[str] = frozenset()
    is_stuck: bool = False  # it asked once more for what was refused

    def noted(self, signature: str, result: str) -> "Circles":
        """After a result."""
        others = tuple(one for one in self.repeats if one.signature != signature)
        same = (one for one in self.repeats if (one.signature, one.result) == (signature, result))
        count = 1 + next((one.count for one in same), 0)
        return replace(self, repeats=(*others, Repeat(signature, result, count)))

    def going_on(self, asked: Sequence[Asked]) -> tuple[Repeat, ...]:
        """Those of the repeats that are asked for again; the others are over."""
        present = {call.signature for call in asked}
        return tuple(one for one in self.repeats if one.signature in present)


@dataclass(frozen=True, slots=True)
class Finding:
    """`loop`: the turn's signature, when it is to be reported. `refused`: ids of fruitless calls."""

    loop: str | None = None
    refused: frozenset[str] = frozenset()


def looked_at(
    circles: Circles, asked: Sequence[Asked], *, window: int, threshold: int, repeats: int
) -> tuple[Circles, Finding]:
    """Before the calls of a turn are executed. A call that is not among them starts anew later."""
    turn = "|".join(sorted(call.signature for call in asked))
    turns = (*circles.turns, turn)[-window:]
    is_loop = turns.count(turn) >= threshold and turn not in circles.reported
    fruitless = {one.signature for one in circles.repeats if one.count >= repeats}
    refused = frozenset(call.id for call in asked if call.signature in fruitless)
    kept = circles.going_on(asked)
    is_stuck = circles.is_stuck or any(one.was_refused for one in kept if one.count >= repeats)
    refusing = tuple(replace(one, was_refused=one.count >= repeats) for one in kept)
    reported = circles.reported | {turn} if is_loop else circles.reported
    after = Circles(refusing, turns, reported, is_stuck)
    return after, Finding(turn if is_loop else None, refused)
