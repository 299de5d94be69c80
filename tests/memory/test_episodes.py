"""Episodes: read once, then warm; forgotten when HEAD moves; bounded over all sessions."""

from dataclasses import replace
from datetime import UTC, datetime

import anyio
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import ContextRules
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node
from gateway.domain.sessions import Path
from gateway.memory.context import PAGE, Episode, Episodes
from tests.fakes.ports import PartOfSessionStore

RULES, ONE = ContextRules(1_000, 3), ContextRules(1_000, 1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = SessionKey(AgentId("a"), "c", "p")


def node(name: str, role: str = "user") -> Node:
    message = Message(role, name)  # type: ignore[arg-type]  # a parameter
    return Node(NodeId(name), None, RunId("r"), message, NOW, 10)


class OneBook(PartOfSessionStore):
    """A transcript of which only `path` is read; it counts the reads."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self.reads: list[tuple[str | None, int]] = []

    async def path(
        self,
        key: SessionKey,
        *,
        upto: NodeId | None = None,
        before: NodeId | None = None,
        limit: int,
    ) -> Path:
        self.reads.append((upto, limit))
        names = [node.id for node in self.nodes]
        upper = names.index(before) if before else len(names)
        shown = self.nodes[max(0, upper - limit) : upper]
        return Path(shown, self.nodes[-1].id if self.nodes else None, more=upper > limit)

    async def node(self, key: SessionKey, node_id: str) -> Node | None:
        raise AssertionError

    async def tree(
        self, key: SessionKey, *, limit: int, archived: bool = False
    ) -> tuple[Node, ...]:
        raise AssertionError

    async def move_head(
        self, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
    ) -> bool:
        raise AssertionError


async def test_a_warm_session_is_not_read_again_until_head_moves() -> None:
    book = OneBook(node("q"), node("a", "assistant"))
    episodes = Episodes(book)
    first = await episodes.recall(KEY, RULES)
    episodes.append(KEY, first, (node("q2"), node("a2", "assistant")), RULES)

    warm = await episodes.recall(KEY, RULES)
    episodes.forget(KEY)
    await episodes.recall(KEY, RULES)

    assert [n.id for n in warm.nodes] == ["q", "a", "q2", "a2"]
    assert warm.head == "a2"
    assert book.reads == [(None, PAGE)] * 2


async def test_continuing_from_elsewhere_reads_that_path_and_keeps_nothing() -> None:
    book = OneBook(node("q"), node("a", "assistant"))
    episodes = Episodes(book)

    await episodes.recall(KEY, RULES, upto=NodeId("a"))
    await episodes.recall(KEY, RULES)

    assert [upto for upto, _ in book.reads] == ["a", None]


def exchange(name: str, replies: int, *, size: int = 10) -> list[Node]:
    said = [node(f"{name}.{n}", "assistant") for n in range(replies)]
    return [replace(one, token_count=size) for one in (node(name), *said)]


async def test_an_exchange_of_many_tool_calls_hides_none_of_those_before_it() -> None:
    turns = [exchange("one", 1), exchange("two", 1), exchange("three", 5 * PAGE, size=1)]
    book = OneBook(*turns[0], *turns[1], *turns[2])

    episode = await Episodes(book).recall(KEY, RULES)

    assert [n.id for n in episode.nodes[:5]] == ["one", "one.0", "two", "two.0", "three"]
    assert len(episode.nodes.begins) == 3


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 400)), max_size=12))
def test_all_that_may_be_shown_is_recalled_whether_it_is_read_or_kept_warm(
    shapes: list[tuple[int, int]],
) -> None:
    turns = [exchange(str(n), replies, size=size) for n, (replies, size) in enumerate(shapes)]
    nodes = [one for turn in turns for one in turn]

    async def both() -> tuple[Episode, Episode, int]:
        book = OneBook(*nodes)
        read = await Episodes(book).recall(KEY, RULES)
        warm = Episodes(OneBook())
        kept = await warm.recall(KEY, RULES)
        for turn in turns:
            warm.append(KEY, kept, tuple(turn), RULES)
            kept = await warm.recall(KEY, RULES)
        return read, kept, len(book.reads)

    read, kept, reads = anyio.run(both)

    for episode in (read, kept):
        tokens = 0
        for shown, turn in enumerate(reversed(turns)):
            tokens += sum(one.token_count for one in turn)
            if shown == RULES.recent_turns or tokens > RULES.token_budget:
                break
            assert turn[0] in episode.nodes
        assert episode.nodes == tuple(nodes[len(nodes) - len(episode.nodes) :])
        assert not episode.nodes or episode.nodes[0].message.role == "user"
    assert reads <= 2 + max((len(turn) for turn in turns), default=0) * RULES.recent_turns // PAGE


async def test_questions_that_were_answered_together_are_one_exchange() -> None:
    together = [node("q1"), node("q2"), node("call", "assistant"), node("r", "tool"), node("q3")]
    book = OneBook(*together, node("a", "assistant"), node("q4"), node("b", "assistant"))

    episode = await Episodes(book).recall(KEY, RULES)

    assert len(episode.nodes.begins) == 2
    assert len(episode.nodes) == 8


async def test_what_is_kept_warm_is_bounded_and_the_oldest_goes_first() -> None:
    book = OneBook(node("q"))
    episodes = Episodes(book, kept_tokens=250)
    keys = [SessionKey(AgentId("a"), "c", "p", str(n)) for n in range(3)]
    for key in keys:
        await episodes.recall(key, ONE)

    await episodes.recall(keys[2], ONE)
    await episodes.recall(keys[1], ONE)
    assert len(book.reads) == 3
    await episodes.recall(keys[0], ONE)
    assert len(book.reads) == 4
