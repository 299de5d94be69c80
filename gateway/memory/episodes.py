"""The episodic window: the newest whole exchanges of a session, cached for sessions in use."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.domain.agents import ContextRules
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.ports import SessionStore
from gateway.domain.sessions import Path, Summary
from gateway.memory.compaction import summary_of
from gateway.memory.window import NODE_WEIGHT, Window

PAGE = 64  # nodes a read
SLACK_TURNS = 4  # a long session is cut now and then, not with every turn
KEPT_TOKENS = 4_000_000  # over all warm sessions together, about 13 MB of text


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
        whole = Window(Window(nodes).since(0))
        return whole, not more and bool(whole) and whole[0].seq == 1

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
