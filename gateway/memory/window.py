"""The recent exchanges that a model is shown again: whole, mended, shortened, as many as fit. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from zlib import crc32

from gateway.domain.ids import NodeId
from gateway.domain.messages import (
    MESSAGE_OVERHEAD,
    Excerpt,
    Message,
    Node,
    ToolCall,
    ToolResult,
    estimate_tokens,
)

Exchange = tuple[Node, ...]

SHOWN_WHOLE = 2  # exchanges whose results are never shortened
LEAST_STEADY = 6  # exchanges: of fewer, each is too good to lose
HEAD, TAIL = 600, 200  # characters that stay of an old result


def message_tokens(message: Message) -> int:
    """Estimated tokens of one message, its tool calls and its result included."""
    tokens = MESSAGE_OVERHEAD + estimate_tokens(message.text)
    for call in message.tool_calls:
        tokens += estimate_tokens(call.name) + estimate_tokens(call.arguments) + MESSAGE_OVERHEAD
    if message.result is not None:
        tokens += estimate_tokens(message.result.told) + MESSAGE_OVERHEAD
    return tokens


def begins_exchange(nodes: Sequence[Node], place: int) -> bool:
    """A question right after an answer: what follows another question, or the result of a tool, was
    answered together with what is before it."""
    before = nodes[place - 1].message.role if place else "assistant"
    return nodes[place].message.role == "user" and before == "assistant"


def exchanges_of(nodes: Sequence[Node]) -> Sequence[Exchange]:
    """Without what stands before the first question."""
    starts: list[int] = []
    before = "assistant"
    for place, node in enumerate(nodes):  # as `begins_exchange` says, but with every turn
        role = node.message.role
        if role == "user" and before == "assistant":
            starts.append(place)
        before = role
    return [tuple(nodes[start:end]) for start, end in pairwise([*starts, len(nodes)])]


def size_of(exchanges: Sequence[Exchange]) -> int:
    return sum(node.token_count for exchange in exchanges for node in exchange)


def fitting(exchanges: Sequence[Exchange], room: int, first: NodeId | None) -> Sequence[Exchange]:
    """The newest that fit. A window that slid with every turn would begin every request anew, so of
    its first third it begins with the exchange of the least digest, which stays the same for some
    turns, and is the same for everybody. `first` is the message that the oldest exchange follows, if
    nothing older may be shown."""
    used, count = 0, 0
    for exchange in reversed(exchanges):
        used += size_of((exchange,))
        if used > room:
            break
        count += 1
    shown = exchanges[len(exchanges) - count :]
    if not shown or shown[0][0].parent_id == first:
        return shown
    loose = count // 3 if count >= LEAST_STEADY else 0
    start = min(range(loose + 1), key=lambda place: crc32(shown[place][0].id.encode()))
    return shown[start:]


def shortened(exchanges: Sequence[Exchange], whole: int = SHOWN_WHOLE) -> Sequence[Exchange]:
    """With the long results of all but the newest cut down; the store keeps the whole."""
    first = max(0, len(exchanges) - whole)
    return [*(tuple(map(_short, one)) for one in exchanges[:first]), *exchanges[first:]]


def _short(node: Node) -> Node:
    result = node.message.result
    if result is None or len(result.content) <= HEAD + TAIL + 100:
        return node
    size, reference = len(result.content), str(node.id)
    if result.excerpt is not None:
        size, reference = result.excerpt.size, result.excerpt.reference or reference
    excerpt = Excerpt(HEAD, TAIL, size, reference)
    message = replace(node.message, result=replace(result, excerpt=excerpt), kept={})
    return replace(node, message=message, token_count=message_tokens(message))


def cut(content: str, head: int = HEAD, tail: int = TAIL) -> str:
    """Its begin and its end, and how much is missing."""
    if len(content) <= head + tail:
        return content
    left_out = f"\n[… {len(content) - head - tail} characters left out …]\n"
    return f"{content[:head]}{left_out}{content[len(content) - tail :]}"


def paired(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Every call is followed by its result at once, in the order of the calls: a model refuses any
    other history. What stands between them comes behind them; a call that nobody answered gets a
    result that says so, and a result without its call is left out."""
    mended: list[Message] = []
    waiting: dict[str, Message] = {}  # by call, of the last message that asked for tools
    between: list[Message] = []
    for message in messages:
        result = message.result
        if result is None and waiting and message.role != "assistant":
            between.append(message)
        elif result is None:
            mended += (*waiting.values(), *between)
            mended.append(message)
            waiting, between = {}, []
            for call in message.tool_calls:
                waiting[call.id] = _unanswered(call)
        elif result.call_id in waiting:
            waiting[result.call_id] = message
    mended += (*waiting.values(), *between)
    return messages if mended == list(messages) else tuple(mended)


def _unanswered(call: ToolCall) -> Message:
    gone = "No result: the conversation goes on from before it."
    return Message("tool", result=ToolResult(call.id, call.name, gone, is_error=True))
