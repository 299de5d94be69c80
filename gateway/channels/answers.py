"""What a platform said to a request, read as the adapter's description has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from gateway.channels.adapters import Outbound
from gateway.channels.encoding import readable
from gateway.channels.progress import printable
from gateway.channels.recipes import at
from gateway.domain.ports import Fetched

LONGEST_WAIT_S = 86_400.0
LARGEST_READ = 1_048_576
_LONGEST_WORD = 300  # also of an id
_UNSURE = frozenset({500, 502, 504})  # whoever says so may have failed after the message was made


@dataclass(frozen=True, slots=True)
class Arrived:
    message_id: str | None


@dataclass(frozen=True, slots=True)
class TryAgain:
    """`after_s`: the platform named the wait. `is_unsure`: it may have done what it was asked."""

    why: str
    after_s: float | None
    is_unsure: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    peer: str
    why: str


@dataclass(frozen=True, slots=True)
class Declined:
    """Asking again would not help; `is_ours`: nor would asking for another peer."""

    why: str
    is_ours: bool = False


Answer = Arrived | TryAgain | Moved | Declined


def read_answer(outbound: Outbound, fetched: Fetched) -> Answer:
    said = read_json(fetched.body)
    word = _text(outbound.error, said)
    if _is_done(outbound, fetched.status, said, word):
        return Arrived(_text(outbound.message_id, said))
    why = f"the platform answered {fetched.status}{f': {printable(word)}' if word else ''}"
    if (peer := _text(outbound.moved_to, said)) is not None:
        return Moved(peer, why)
    if fetched.status in outbound.retry_statuses or word in outbound.retry_errors:
        wait_s = _wait_s(outbound.retry_after, said, dict(fetched.headers))
        return TryAgain(why, wait_s, is_unsure=fetched.status in _UNSURE)
    return Declined(why, is_ours=fetched.status == 401)


def _is_done(outbound: Outbound, status: int, said: object, word: str | None) -> bool:
    is_ok = 200 <= status < 300 and (outbound.ok is None or at(said, outbound.ok) is not False)
    return is_ok or (word is not None and word.startswith(outbound.done_errors))


def read_json(text: bytes | str) -> object:
    """None for what is none, and for so much that reading it would hold up everybody else."""
    if len(text) > LARGEST_READ:
        return None
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    try:
        return from_json(readable(shown), allow_inf_nan=False)
    except ValueError:
        return None


def _text(path: str | None, said: object) -> str | None:
    """Words and numbers are texts, anything else is none."""
    value = None if path is None else at(said, path)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value)[:_LONGEST_WORD] or None


def _wait_s(places: Sequence[str], said: object, headers: Mapping[str, str]) -> float | None:
    for place in places:
        kind, _, name = place.partition(":")
        value = headers.get(name.lower()) if kind == "header" else at(said, place)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            continue
        try:
            seconds = float(value)
        except (ValueError, OverflowError):  # a date, which nobody sends to programs
            continue
        if seconds >= 0:  # NaN is not
            return min(seconds, LONGEST_WAIT_S)
    return None
