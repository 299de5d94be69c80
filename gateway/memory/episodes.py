"""The episodic window: the last whole exchanges of a session, kept warm for the sessions in use."""

from collections import OrderedDict
from dataclasses import dataclass, replace

from gateway.domain.agents import ContextRules
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.ports import Transcript
from gateway.domain.sessions import Path, Summary
from gateway.memory.compaction import summary_of
from gateway.memory.window import begins_exchange

PAGE = 64  # nodes a read
SLACK_TURNS = 4  # a long session is cut now and then, not with every turn
KEPT_TOKENS = 4_000_000  # over all warm sessions together, about 13 MB of text


@dataclass(frozen=True, slots=True)
class Episode:
    """Nodes on the path to `head`, oldest first, beginning with a question: of what the summary does
    not stand for, the end."""

    head: NodeId | None
    nodes: tuple[Node, ...] = ()
    turns: int = 0
    weight: int = 0  # what keeping it costs, in tokens
    summary: Summary | None = None
    follows: NodeId | None = None  # `head` is a summary, made right after this message
    is_all: bool = False  # of what was ever said in this session, as far as anybody knows

    def is_summed_up_after(self, node: NodeId) -> bool:
        """Whether to go on from there is to go on from here."""
        return self.follows == node


class Episodes:
    """Costs the same in a session of any length: only the end of the path is ever read."""

    def __init__(self, transcript: Transcript, *, kept_tokens: int = KEPT_TOKENS) -> None:
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
        if upto is None and key in self._warm:
            self._warm.move_to_end(key)
            return self._warm[key]
        path = await self._transcript.path(key, upto=upto, limit=PAGE)
        summary = summary_of(path.summary)
        nodes, more = not_covered(path, summary)
        oldest = path.nodes
        while more and not _is_enough(nodes, rules):
            page = await self._transcript.path(key, before=oldest[0].id, limit=PAGE)
            earlier, more = not_covered(page, summary)
            nodes, oldest = (*earlier, *nodes), page.nodes
        episode = _episode(upto or path.head, nodes, summary)
        if path.nodes and path.nodes[-1].message.role == "summary":
            episode = replace(episode, follows=path.nodes[-1].parent_id)
        if upto is None:
            self._keep(key, episode)
        return episode

    def append(
        self, key: SessionKey, episode: Episode, nodes: tuple[Node, ...], rules: ContextRules
    ) -> None:
        """What was just committed, so that the next turn need not read it."""
        weight = episode.weight + _weight(nodes)
        said, summary = (*episode.nodes, *nodes), episode.summary
        turns, is_all = episode.turns + 1, episode.is_all
        grown = Episode(nodes[-1].id, said, turns, weight, summary, is_all=is_all)
        too_long = grown.turns > rules.recent_turns + SLACK_TURNS
        if too_long or weight > 2 * rules.token_budget + 100 * len(grown.nodes):
            grown = _episode(grown.head, _needed(grown.nodes, rules), summary)
        self._keep(key, grown)

    def forget(self, key: SessionKey) -> None:
        """HEAD was moved: what is warm is no longer the path."""
        gone = self._warm.pop(key, None)
        if gone is not None:
            self._weight -= gone.weight

    def _keep(self, key: SessionKey, episode: Episode) -> None:
        self.forget(key)
        self._warm[key] = episode
        self._weight += episode.weight
        while self._weight > self._kept_tokens and len(self._warm) > 1:
            self.forget(next(iter(self._warm)))


def _is_enough(nodes: tuple[Node, ...], rules: ContextRules) -> bool:
    return _needed(nodes, rules) != nodes


def _needed(nodes: tuple[Node, ...], rules: ContextRules) -> tuple[Node, ...]:
    """The newest of them that may be shown at all: so many turns, or so many tokens."""
    turns = tokens = 0
    for place in range(len(nodes) - 1, -1, -1):
        tokens += nodes[place].token_count
        if begins_exchange(nodes, place):
            turns += 1
            if place and (turns >= rules.recent_turns or tokens > rules.token_budget):
                return nodes[place:]
    return nodes


def not_covered(path: Path, summary: Summary | None) -> tuple[tuple[Node, ...], bool]:
    """What the summary does not stand for, and whether there is more of it."""
    nodes, more = path.nodes, path.more
    ids = [node.id for node in nodes]
    if summary is not None and summary.covers in ids:
        nodes, more = nodes[ids.index(summary.covers) + 1 :], False
    return tuple(node for node in nodes if node.message.role != "summary"), more


def _episode(
    head: NodeId | None, nodes: tuple[Node, ...], summary: Summary | None = None
) -> Episode:
    """Without the rest of an exchange whose question was cut off."""
    starts = [place for place in range(len(nodes)) if begins_exchange(nodes, place)]
    whole = nodes[starts[0] :] if starts else ()
    return Episode(head, whole, len(starts), _weight(whole), summary)


def _weight(nodes: tuple[Node, ...]) -> int:
    """A node costs memory even when its text is short, and so does what is not shown of a result."""
    weight = 0
    for node in nodes:
        weight += node.token_count + 100
        result = node.message.result
        if result is not None and result.excerpt is not None:
            weight += len(result.content) // 3
    return weight
