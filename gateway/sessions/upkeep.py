"""What is done to a conversation besides talking: begun anew, marked, closed, taken in, erased."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.domain.conversations import IMPORTED, Conversations, Erased, Erasures, TakenIn
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.ports import Clock, Sessions
from gateway.memory.compaction import summary_message
from gateway.memory.episodes import Episodes
from gateway.memory.oracle import OracleContext, said_in, summary_in
from gateway.memory.window import message_tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Everything here is durable when it comes back. `said` is told where messages came in."""

    conversations: Conversations
    erasures: Erasures
    sessions: Sessions
    episodes: Episodes
    clock: Clock
    said: Callable[[SessionKey], None] = lambda key: None

    async def begin(self, key: SessionKey) -> None:
        """The next message is a root; what was said before stays, as another tree."""
        await self.conversations.begin(key, now=self.clock.now())
        self.episodes.forget(key)

    async def take_in(self, key: SessionKey, nodes: Sequence[Node]) -> TakenIn:
        """Raises ImportRefused."""
        taken = await self.conversations.take_in(key, nodes, now=self.clock.now())
        self.episodes.forget(key)
        self.said(key)
        return taken

    async def take_in_context(self, key: SessionKey, context: OracleContext) -> TakenIn:
        """As another tree, unless it is there already."""
        taken = await self.take_in(key, nodes_of(context))
        if context.status == "closed":
            await self.sessions.close(key)
        return taken

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool = False) -> Erased:
        """Raises NotFound, and Busy while a message of the session is not answered yet."""
        now = self.clock.now()
        erased = await self.erasures.erase(key, by=by, dry_run=dry_run, now=now)
        if not dry_run:
            self.episodes.forget(key)
            log.info("conversation erased", extra={"by": by, "tombstone": erased.tombstone})
        return erased


def nodes_of(context: OracleContext) -> Sequence[Node]:
    """A summary of its older part, if it has one, and its messages under each other. An exchange may
    be several messages: the last has its id."""
    nodes: list[Node] = []
    first = NodeId(f"{context.id}-summary")
    summary = summary_in(context, first)
    if summary is not None:
        message = summary_message(summary)
        tokens = message_tokens(message)
        nodes.append(Node(first, None, IMPORTED, message, context.session_start, tokens))
    told = said_in(context)
    for place, (id_, at, message) in enumerate(told):
        later = sum(other == id_ for other, _, _ in told[place + 1 :])
        name = NodeId(f"{id_}.{later}" if later else id_)
        parent = nodes[-1].id if nodes else None
        node = Node(name, parent, IMPORTED, message, at, message_tokens(message))
        is_answer = message.role == "assistant"
        nodes.append(replace(node, model=context.last_model if is_answer else None))
    return nodes
