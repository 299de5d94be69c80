"""The window: the newest whole exchanges of a session, kept for sessions in use, shortened so that as
many as possible fit."""

import json
import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from gateway.domain.agents import ContextRules
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import (
    MESSAGE_OVERHEAD,
    Excerpt,
    Message,
    Node,
    ToolResult,
    estimate_tokens,
)
from gateway.domain.ports import SessionStore
from gateway.domain.sessions import Path, Summary, from_plain

Exchange = tuple[Node, ...]

log = logging.getLogger(__name__)

SHOWN_WHOLE = 2  # exchanges whose results are never shortened
LEAST_STEADY = 6  # exchanges: of fewer, each is too good to lose
HEAD, TAIL = 600, 200  # characters that stay of an old result
NODE_WEIGHT = 100  # tokens' worth of memory that a node costs even when its text is short
PAGE = 64  # nodes a read
SLACK_TURNS = 4  # a long session is cut now and then, not with every turn
KEPT_TOKENS = 4_000_000  # over all warm sessions together, about 13 MB of text


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
        first = max(first, bisect_left(begins, self.tokens - room, key=_BEFORE))
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
            mended += (*waiting.values(), *between, message)
            waiting, between = {}, []
            for call in message.tool_calls:
                gone = ToolResult(call.id, call.name, _GONE, is_error=True)
                waiting[call.id] = Message("tool", result=gone)
        elif result.call_id in waiting:
            waiting[result.call_id] = message
    mended += (*waiting.values(), *between)
    return messages if mended == list(messages) else tuple(mended)


_GONE = "No result: the conversation goes on from before it."


@dataclass(frozen=True, slots=True)
class Episode:
    """The end of the path to `head`, oldest first, beginning with a question, without what the
    summary covers."""

    head: NodeId | None
    nodes: Window = field(default_factory=Window)
    summary: Summary | None = None
    follows: NodeId | None = None  # `head` is a summary, made right after this message
    is_all: bool = False  # that was ever said in this session, and all of it is shown

    def is_summed_up_after(self, node: NodeId) -> bool:
        """Whether continuing from that node is the same as continuing from `head`."""
        return self.follows == node


class Episodes:
    """Reads only the end of a path, so the cost does not depend on the length of the session."""

    def __init__(self, transcript: SessionStore, *, kept_tokens: int = KEPT_TOKENS) -> None:
        self._transcript = transcript
        self._warm: OrderedDict[SessionKey, Episode] = OrderedDict()
        self._weight = 0
        self._kept_tokens = kept_tokens

    async def recall(
        self, key: SessionKey, rules: ContextRules, *, upto: NodeId | None = None
    ) -> Episode:
        """The end of the path to HEAD, or to `upto` when a message continues from elsewhere.

        Reads until the rules' turns or tokens are reached, so nothing that may be shown is missing.
        """
        warm = self._warm.get(key) if upto is None else None
        if warm is not None:
            self._warm.move_to_end(key)
            return warm
        path = await self._transcript.path(key, upto=upto, limit=PAGE)
        summary = summary_of(path.summary)
        window, is_whole = await self._window(key, path, summary, rules)
        is_all = is_whole and summary is None and _is_shown(window, rules)
        last = path.nodes[-1] if path.nodes else None
        follows = last.parent_id if last and last.message.role == "summary" else None
        episode = Episode(upto or path.head, window, summary, follows, is_all)
        if upto is None:
            self._keep(key, episode)
        return episode

    async def _window(
        self, key: SessionKey, path: Path, summary: Summary | None, rules: ContextRules
    ) -> tuple[Window, bool]:
        """Also whether it begins with the first message of the session."""
        nodes, more = not_covered(path, summary)
        oldest = path.nodes
        while more and (window := Window(nodes)).needed(rules) is window:
            page = await self._transcript.path(key, before=oldest[0].id, limit=PAGE)
            earlier, more = not_covered(page, summary)
            nodes, oldest = (*earlier, *nodes), page.nodes
        # Without the rest of an exchange whose question was cut off.
        window = Window(Window(nodes).since(0))
        return window, not more and bool(window) and window[0].seq == 1

    def append(
        self, key: SessionKey, episode: Episode, nodes: Sequence[Node], rules: ContextRules
    ) -> None:
        """Adds committed nodes to the cached window, so that the next turn reads nothing."""
        grown = Window(nodes, after=episode.nodes)
        is_all = episode.is_all and _is_shown(grown, rules)
        too_long = len(grown.begins) > rules.recent_turns + SLACK_TURNS
        if too_long or grown.weight > 2 * rules.token_budget + NODE_WEIGHT * len(grown):
            grown = grown.needed(rules)
        self._keep(key, Episode(nodes[-1].id, grown, episode.summary, is_all=is_all))

    def forget(self, key: SessionKey) -> None:
        """Drops the cached window after HEAD was moved."""
        gone = self._warm.pop(key, None)
        if gone is not None:
            self._weight -= gone.nodes.weight

    def _keep(self, key: SessionKey, episode: Episode) -> None:
        before = self._warm.pop(key, None)
        self._warm[key] = episode
        self._weight += episode.nodes.weight - (before.nodes.weight if before else 0)
        while self._weight > self._kept_tokens and len(self._warm) > 1:
            self.forget(next(iter(self._warm)))


def _is_shown(window: Window, rules: ContextRules) -> bool:
    """Whether all of the window fits, whatever else the context holds."""
    return len(window.begins) <= rules.recent_turns and 2 * window.tokens <= rules.token_budget


def not_covered(path: Path, summary: Summary | None) -> tuple[tuple[Node, ...], bool]:
    """The nodes that the summary does not cover, and whether there are older ones."""
    nodes, more = path.nodes, path.more
    ids = [node.id for node in nodes]
    if summary is not None and summary.covers in ids:
        nodes, more = nodes[ids.index(summary.covers) + 1 :], False
    return tuple(node for node in nodes if node.message.role != "summary"), more


def summary_of(node: Node | None) -> Summary | None:
    """Parses a stored summary. None if it cannot be read: then its messages are shown
    themselves."""
    try:
        return None if node is None else from_plain(json.loads(node.message.text))
    except ValueError:
        log.exception("a summary cannot be read", extra={"node": node and node.id})
        return None
