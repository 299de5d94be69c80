"""What is done to a conversation besides talking: begun anew, marked, closed, taken in, erased."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from gateway.domain.conversations import Conversations, Erased, Erasures, TakenIn
from gateway.domain.ids import SessionKey
from gateway.domain.messages import Node
from gateway.domain.ports import Clock, Sessions
from gateway.memory.episodes import Episodes
from gateway.memory.window import message_tokens
from gateway.sessions.reception import size_of
from gateway.tools.gate import new_boundary

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Everything here is durable when it comes back. `said` is told where messages came in,
    `forgotten` where they went; `holding` counts what is being taken in."""

    conversations: Conversations
    erasures: Erasures
    sessions: Sessions
    episodes: Episodes
    clock: Clock
    said: Callable[[SessionKey], None] = lambda key: None
    forgotten: Callable[[SessionKey], None] = lambda key: None
    holding: Callable[[SessionKey, int], AbstractContextManager[None]] = lambda key, size: (
        nullcontext()
    )

    async def begin(self, key: SessionKey) -> None:
        """The next message is a root; what was said before stays, as another tree."""
        await self.conversations.begin(key, now=self.clock.now())
        self.episodes.forget(key)

    async def take_in(self, key: SessionKey, nodes: Sequence[Node]) -> TakenIn:
        """Raises ImportRefused, and Busy if too much is on its way into the session already."""
        with self.holding(key, sum(map(_size, nodes))):
            bounded = [_bounded(node) for node in nodes]
            taken = await self.conversations.take_in(key, bounded, now=self.clock.now())
        self.episodes.forget(key)
        self.said(key)
        return taken

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool = False) -> Erased:
        """Raises NotFound, and Busy while a message of the session is not answered yet."""
        now = self.clock.now()
        erased = await self.erasures.erase(key, by=by, dry_run=dry_run, now=now)
        if not dry_run:
            self.episodes.forget(key)
            self.forgotten(key)
            log.info("conversation erased", extra={"by": by, "tombstone": erased.tombstone})
        return erased


def _size(node: Node) -> int:
    message = node.message
    texts = (message.text, *(call.arguments for call in message.tool_calls))
    return sum(map(size_of, texts)) + (size_of(message.result.content) if message.result else 0)


def _bounded(node: Node) -> Node:
    """With a boundary around the result that it holds, as if a tool of ours had given it."""
    result = node.message.result
    if result is None:
        return node
    message = replace(node.message, result=replace(result, boundary=new_boundary()), kept={})
    more = message_tokens(message) - message_tokens(node.message)
    return replace(node, message=message, token_count=node.token_count + more)
