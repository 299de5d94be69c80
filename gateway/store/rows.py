"""Values as columns and back: times, texts, messages."""

from collections.abc import Sequence
from typing import Any, get_args

from pydantic_core import from_json, to_json

from gateway.domain.errors import GatewayError
from gateway.domain.ids import NodeId
from gateway.domain.messages import Excerpt, Extras, Message, Node, Standing, ToolCall, ToolResult
from gateway.domain.times import to_micros as to_micros  # a row's times
from gateway.domain.times import to_time as to_time


class TextRefused(GatewayError):
    """A text that has no UTF-8 form can be neither kept nor sent."""

    code = "bad_text"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} holds half of a surrogate pair, which no text may hold: "
            "nothing was stored; send it again as valid Unicode"
        )


def require_text(what: str, *texts: str | None) -> None:
    """Raises TextRefused before anything is written."""
    for text in texts:
        if text is None or text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextRefused(what) from error


_SET_BACK_US = 60_000_000


class Stamps:
    """Times for `updated_at` that no two sessions share, so that a page's end loses nobody.

    A clock that is set back by more than a minute is believed.
    """

    def __init__(self, last: int = 0) -> None:
        self._last = last

    def take(self, micros: int) -> int:
        if self._last - _SET_BACK_US < micros <= self._last:
            micros = self._last + 1
        self._last = micros
        return micros


def pack_message(message: Message) -> bytes | None:
    """What a message holds besides its role and text; None for most."""
    beside = message.thinking or message.extras or message.notices
    if not (message.tool_calls or message.result or beside):
        return None
    return to_json(
        [
            [[call.id, call.name, call.arguments] for call in message.tool_calls],
            _pack_result(message.result),
            message.thinking,
            [message.extras.provider, message.extras.json] if message.extras else None,
            *([message.notices] if message.notices else []),
        ]
    )


def _pack_result(result: ToolResult | None) -> list[object] | None:
    if result is None:
        return None
    told = [result.call_id, result.name, result.content, result.is_error, result.duration_ms]
    if not (result.boundary or result.excerpt):
        return told
    cut = result.excerpt
    shown = [cut.head, cut.tail, cut.size, cut.reference] if cut else None
    return [*told, result.boundary, shown]


def _unpack_result(packed: list[Any] | None) -> ToolResult | None:
    if packed is None:
        return None
    call_id, name, content, is_error, duration_ms, *more = packed
    boundary, cut = more or ("", None)
    excerpt = Excerpt(*cut) if cut else None
    told = (call_id, name, content, is_error, duration_ms)
    return ToolResult(*told, boundary=boundary, excerpt=excerpt)


def unpack_message(role: Any, text: str, packed: bytes | None) -> Message:
    if packed is None:
        return Message(role, text)
    calls, result, thinking, extras, *notices = from_json(packed)
    return Message(
        role,
        text,
        tuple(ToolCall(*call) for call in calls),
        _unpack_result(result),
        thinking,
        Extras(*extras) if extras else None,
        tuple((kind, told) for kind, told in notices[0]) if notices else (),
    )


def message_texts(message: Message) -> Sequence[str | None]:
    """Every text in it, to be checked before it is written."""
    texts = [message.text, message.thinking]
    for call in message.tool_calls:
        texts += (call.id, call.name, call.arguments)
    if message.result is not None:
        texts += (message.result.call_id, message.result.name, message.result.content)
    if message.extras is not None:
        texts += (message.extras.provider, message.extras.json)
    texts += (told for _, told in message.notices)
    return texts


# A node's place is its session's number and its own number in one integer: siblings in time lie
# side by side on disk, and every step along a path is one look-up by row id.
SEQ_BITS = 32
_SEQ_MASK = (1 << SEQ_BITS) - 1


def place_of(session: int, seq: int) -> int:
    return session << SEQ_BITS | seq


def seq_of(place: int) -> int:
    return place & _SEQ_MASK


def to_node(row: Sequence[Any], parent_id: NodeId | None) -> Node:
    """From the columns of NODE_COLUMNS and one more."""
    place, node_id, run_id, role, text, packed, status, tokens, model, created, label, *more = row
    summary, checkpoint, standing, _ = more
    role = "summary" if summary == place else role
    message, at, seq = unpack_message(role, text, packed), to_time(created), seq_of(place)
    marks = (label, bool(checkpoint), STANDINGS[standing])
    return Node(node_id, parent_id, run_id, message, at, tokens, status, model, seq, *marks)


STANDINGS: tuple[Standing, ...] = get_args(Standing)  # by their number in a column
NODE_COLUMNS = (
    "n.place, n.id, n.run_id, n.role, n.text, n.packed, n.status, n.tokens, n.model, n.created_at,"
    " n.label, n.summary, n.checkpoint, n.standing"
)
