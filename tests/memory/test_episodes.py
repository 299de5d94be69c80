"""Episodes: read once, then warm; forgotten when HEAD moves; bounded over all sessions."""

from datetime import UTC, datetime

from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node
from gateway.domain.sessions import Path
from gateway.memory.episodes import NODES_A_TURN, Episodes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = SessionKey(AgentId("a"), "c", "p")


def node(name: str, role: str = "user") -> Node:
    message = Message(role, name)  # type: ignore[arg-type]
    return Node(NodeId(name), None, RunId("r"), message, NOW, 10)


class OneBook:
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
        shown = self.nodes[-limit:]
        return Path(shown, shown[-1].id if shown else None, more=len(self.nodes) > limit)

    async def node(self, key: SessionKey, node_id: str) -> Node | None:
        raise AssertionError

    async def tree(self, key: SessionKey, *, limit: int) -> tuple[Node, ...]:
        raise AssertionError

    async def move_head(
        self, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
    ) -> bool:
        raise AssertionError


async def test_a_warm_session_is_not_read_again_until_head_moves() -> None:
    book = OneBook(node("q"), node("a", "assistant"))
    episodes = Episodes(book)
    first = await episodes.recall(KEY, turns=3)
    episodes.append(KEY, first, (node("q2"), node("a2", "assistant")), turns=3)

    warm = await episodes.recall(KEY, turns=3)
    episodes.forget(KEY)
    await episodes.recall(KEY, turns=3)

    assert [n.id for n in warm.nodes] == ["q", "a", "q2", "a2"]
    assert warm.head == "a2"
    assert book.reads == [(None, 3 * NODES_A_TURN)] * 2


async def test_continuing_from_elsewhere_reads_that_path_and_keeps_nothing() -> None:
    book = OneBook(node("q"), node("a", "assistant"))
    episodes = Episodes(book)

    await episodes.recall(KEY, turns=3, upto=NodeId("a"))
    await episodes.recall(KEY, turns=3)

    assert [upto for upto, _ in book.reads] == ["a", None]


async def test_an_exchange_without_its_question_is_left_out() -> None:
    book = OneBook(
        *[node(f"a{n}", "assistant") for n in range(5)], node("q"), node("b", "assistant")
    )

    episode = await Episodes(book).recall(KEY, turns=1)

    assert [n.id for n in episode.nodes] == ["q", "b"]


async def test_what_is_kept_warm_is_bounded_and_the_oldest_goes_first() -> None:
    book = OneBook(node("q"))
    episodes = Episodes(book, kept_tokens=250)
    keys = [SessionKey(AgentId("a"), "c", "p", str(n)) for n in range(3)]
    for key in keys:
        await episodes.recall(key, turns=1)

    await episodes.recall(keys[2], turns=1)
    await episodes.recall(keys[1], turns=1)
    assert len(book.reads) == 3
    await episodes.recall(keys[0], turns=1)
    assert len(book.reads) == 4
