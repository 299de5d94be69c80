"""The episodic window: the last whole exchanges of a session, kept warm for the sessions in use."""

from collections import OrderedDict
from dataclasses import dataclass

from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.ports import Transcript

NODES_A_TURN = (
    6  # room for tool rounds; an exchange that is cut off by this bound is left out whole
)
KEPT_TOKENS = 4_000_000  # over all warm sessions together, about 13 MB of text


@dataclass(frozen=True, slots=True)
class Episode:
    """Nodes on the path to `head`, oldest first, beginning with a question."""

    head: NodeId | None
    nodes: tuple[Node, ...] = ()


class Episodes:
    """Costs the same in a session of any length: only the end of the path is ever read."""

    def __init__(self, transcript: Transcript, *, kept_tokens: int = KEPT_TOKENS) -> None:
        self._transcript = transcript
        self._warm: OrderedDict[SessionKey, Episode] = OrderedDict()
        self._tokens = 0
        self._kept_tokens = kept_tokens

    async def recall(self, key: SessionKey, *, turns: int, upto: NodeId | None = None) -> Episode:
        """The end of the path to HEAD, or to `upto` when a message continues from elsewhere."""
        if upto is None and key in self._warm:
            self._warm.move_to_end(key)
            return self._warm[key]
        path = await self._transcript.path(key, upto=upto, limit=turns * NODES_A_TURN)
        episode = Episode(path.head, _whole(path.nodes))
        if upto is None:
            self._keep(key, episode)
        return episode

    def append(
        self, key: SessionKey, episode: Episode, nodes: tuple[Node, ...], *, turns: int
    ) -> None:
        """What was just committed, so that the next turn need not read it."""
        grown = (*episode.nodes, *nodes)[-turns * NODES_A_TURN :]
        self._keep(key, Episode(nodes[-1].id, _whole(grown)))

    def forget(self, key: SessionKey) -> None:
        """HEAD was moved: what is warm is no longer the path."""
        gone = self._warm.pop(key, None)
        if gone is not None:
            self._tokens -= _tokens(gone)

    def _keep(self, key: SessionKey, episode: Episode) -> None:
        self.forget(key)
        self._warm[key] = episode
        self._tokens += _tokens(episode)
        while self._tokens > self._kept_tokens and len(self._warm) > 1:
            self.forget(next(iter(self._warm)))


def _whole(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without the rest of an exchange whose question was cut off."""
    for index, node in enumerate(nodes):
        if node.message.role == "user":
            return nodes[index:]
    return ()


def _tokens(episode: Episode) -> int:
    # A node costs memory even when its text is short.
    return sum(node.token_count + 100 for node in episode.nodes)
