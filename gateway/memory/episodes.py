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
    weight: int = 0  # what keeping it costs, in tokens


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
        episode = _episode(upto or path.head, path.nodes)
        if upto is None:
            self._keep(key, episode)
        return episode

    def append(
        self, key: SessionKey, episode: Episode, nodes: tuple[Node, ...], *, turns: int
    ) -> None:
        """What was just committed, so that the next turn need not read it."""
        most = turns * NODES_A_TURN
        if len(episode.nodes) + len(nodes) <= most:
            weight = episode.weight + _weight(nodes)
            grown = Episode(nodes[-1].id, (*episode.nodes, *nodes), weight)
        else:
            # Cut with some slack, so that a long session does not pay for it with every turn.
            keep = most - NODES_A_TURN
            grown = _episode(nodes[-1].id, (*episode.nodes, *nodes)[-keep:])
        self._keep(key, grown)

    def forget(self, key: SessionKey) -> None:
        """HEAD was moved: what is warm is no longer the path."""
        gone = self._warm.pop(key, None)
        if gone is not None:
            self._tokens -= gone.weight

    def _keep(self, key: SessionKey, episode: Episode) -> None:
        self.forget(key)
        self._warm[key] = episode
        self._tokens += episode.weight
        while self._tokens > self._kept_tokens and len(self._warm) > 1:
            self.forget(next(iter(self._warm)))


def _whole(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without the rest of an exchange whose question was cut off."""
    for index, node in enumerate(nodes):
        if node.message.role == "user":
            return nodes[index:]
    return ()


def _episode(head: NodeId | None, nodes: tuple[Node, ...]) -> Episode:
    whole = _whole(nodes)
    return Episode(head, whole, _weight(whole))


def _weight(nodes: tuple[Node, ...]) -> int:
    # A node costs memory even when its text is short.
    return sum(node.token_count + 100 for node in nodes)
