"""The window: recent exchanges that a model is shown whole, shortened, as many as fit. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from gateway.domain.agents import ContextRules
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
NODE_WEIGHT = 100  # tokens' worth of memory that a node costs even when its text is short


def message_tokens(message: Message) -> int:
    """Estimated tokens of a message, including its tool calls and its result."""
    tokens = MESSAGE_OVERHEAD + estimate_tokens(message.text)
    for call in message.tool_calls:
        tokens += estimate_tokens(call.name) + estimate_tokens(call.arguments) + MESSAGE_OVERHEAD
    if message.result is not None:
        tokens += estimate_tokens(message.result.told) + MESSAGE_OVERHEAD
    return tokens


class Begin(NamedTuple):
    """Where an exchange begins: at a question right after an answer. Other questions belong to the
    exchange before them."""

    place: int
    id: NodeId
    before: int  # tokens of the window before it
    digest: int


_BEFORE, _DIGEST = attrgetter("before"), attrgetter("digest")


class Window(tuple[Node, ...]):
    """Nodes of a path, oldest first, with the positions and sums that packing needs. A window that
    grows from another one reads the new nodes only."""

    begins: tuple[Begin, ...]
    tokens: int
    weight: int  # what keeping it costs, in tokens
    has_tools: bool

    def __new__(cls, nodes: Iterable[Node] = (), *, after: "Window | None" = None) -> "Window":
        more, earlier = tuple(nodes), after or ()
        window = super().__new__(cls, (*earlier, *more))
        begins, tokens, weight, has_tools = list[Begin](), 0, 0, False
        if after is not None:
            begins += after.begins
            tokens, weight, has_tools = after.tokens, after.weight, after.has_tools
        role = earlier[-1].message.role if earlier else "assistant"
        for place, node in enumerate(more, len(window) - len(more)):
            message = node.message
            if message.role == "user" and role == "assistant":
                begins.append(Begin(place, node.id, tokens, crc32(node.id.encode())))
            role, result = message.role, message.result
            tokens += node.token_count
            weight += node.token_count + NODE_WEIGHT
            if result is not None and result.excerpt is not None:  # not all of it is shown
                weight += len(result.content) // 3
            has_tools |= result is not None or bool(message.tool_calls)
        window.begins, window.tokens, window.weight = tuple(begins), tokens, weight
        window.has_tools = has_tools
        return window

    def size(self, first: int) -> int:
        """Tokens of this exchange and those after it."""
        return self.tokens - self.begins[first].before if first < len(self.begins) else 0

    def since(self, first: int) -> Sequence[Node]:
        """Nodes of this exchange and those after it."""
        return self[self.begins[first].place :] if first < len(self.begins) else ()

    def newest(self, room: float) -> int:
        """Index of the oldest of the newest exchanges that together take at most that many
        tokens."""
        return bisect_left(self.begins, self.tokens - room, key=_BEFORE)

    def needed(self, rules: ContextRules) -> "Window":
        """The newest part that may ever be shown: the turns or the tokens of the rules."""
        newest = len(self.begins) - 1
        over = self.newest(rules.token_budget) - 1
        first = min(newest, max(newest + 1 - rules.recent_turns, over))
        return Window(self.since(first)) if first >= 0 and self.begins[first].place else self

    def fitting(self, first: int, room: int, follows: NodeId | None) -> int:
        """Index of the oldest exchange to show, not before `first`. A window that slides with every
        turn would give each request a new beginning. So it begins with the exchange of the least
        digest in its first third, which stays the same for some turns. `follows` is the message
        after which the visible part begins."""
        begins = self.begins
        first = max(first, self.newest(room))
        count = len(begins) - first
        if count < LEAST_STEADY or self[begins[first].place].parent_id == follows:
            return first
        loose = begins[first : first + count // 3 + 1]
        return first + loose.index(min(loose, key=_DIGEST))

    def shortened(self, first: int, whole: int = SHOWN_WHOLE) -> "Window":
        """The exchanges since `first`, with long results cut in all but the newest `whole`. The
        store keeps the full results."""
        kept = self.since(max(first, len(self.begins) - whole)) if whole else ()
        nodes = self.since(first)
        return Window((*map(_short, nodes[: len(nodes) - len(kept)]), *kept))


def exchanges_of(nodes: Sequence[Node]) -> Sequence[Exchange]:
    """Splits nodes into exchanges; drops nodes before the first question."""
    starts = [begin.place for begin in Window(nodes).begins]
    return [tuple(nodes[start:end]) for start, end in pairwise([*starts, len(nodes)])]


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
    """The beginning and the end, with the number of characters between them."""
    if len(content) <= head + tail:
        return content
    left_out = f"\n[… {len(content) - head - tail} characters left out …]\n"
    return f"{content[:head]}{left_out}{content[len(content) - tail :]}"


def paired(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Puts every result right after its call, in the order of the calls, as models require.
    Messages between them come after the results. A call without a result gets one that says so; a
    result without a call is dropped."""
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
