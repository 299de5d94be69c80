"""Summaries stand in the tree, under HEAD, and are found from every node below them and no other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.domain.errors import NotFound
from gateway.domain.ids import NodeId, RunId
from gateway.domain.messages import Message, Node
from gateway.domain.ports import Stores
from gateway.store.sqlite import open_sqlite
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, an_ending, an_entry, open_memory, session_key

KEY = session_key()


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    async with open_memory() as stores:
        yield stores


def a_summary(name: str, text: str = "so far") -> Node:
    return Node(NodeId(name), None, RunId("run-a"), Message("summary", text), NOON, 5, model="m")


async def say(
    stores: Stores, name: str, grown_from: str | None, *, take_head: bool = False
) -> None:
    await stores.inbox.accept(an_entry(name), begin=True)
    await stores.inbox.finish(an_ending(name, grown_from=grown_from, take_head=take_head))


async def test_what_grows_below_a_summary_finds_it_and_no_sibling_does(stores: Stores) -> None:
    await say(stores, "a", None)
    assert await stores.sessions.append_summary(KEY, a_summary("s1"), expected=NodeId("a-2"))
    await say(stores, "b", "s1")
    assert await stores.sessions.append_summary(KEY, a_summary("s2"), expected=NodeId("b-2"))
    await say(stores, "c", "s2")
    await say(stores, "d", "b-2", take_head=True)
    await say(stores, "e", "a-2", take_head=True)

    found = {}
    for end in ("a-2", "s1", "b-2", "s2", "c-2", "d-2", "e-2"):
        path = await stores.sessions.path(KEY, upto=NodeId(end), limit=1)
        found[end] = path.summary and path.summary.id

    assert found == {
        "a-2": None,
        "s1": "s1",
        "b-2": "s1",
        "s2": "s2",
        "c-2": "s2",
        "d-2": "s1",
        "e-2": None,
    }


async def test_a_summary_is_in_its_place_with_its_own_role_and_no_message(stores: Stores) -> None:
    await say(stores, "a", None)
    before = await stores.sessions.find_session(KEY)
    await stores.sessions.append_summary(KEY, a_summary("s"), expected=NodeId("a-2"))

    path = await stores.sessions.path(KEY, limit=9)
    tree = await stores.sessions.tree(KEY, limit=9)
    after = await stores.sessions.find_session(KEY)

    assert [node.message.role for node in path.nodes] == ["user", "assistant", "summary"]
    assert [node.message.role for node in tree] == ["user", "assistant", "summary"]
    assert (path.head, path.nodes[-1].parent_id, path.nodes[-1].seq) == ("s", "a-2", 3)
    assert path.summary == path.nodes[-1]
    assert before is not None
    assert after is not None
    assert after.message_count == before.message_count


async def test_a_head_that_moved_meanwhile_keeps_the_summary_out(stores: Stores) -> None:
    await say(stores, "a", None)

    assert not await stores.sessions.append_summary(KEY, a_summary("s"), expected=NodeId("a-1"))

    path = await stores.sessions.path(KEY, limit=9)
    assert (path.head, path.summary, len(path.nodes)) == ("a-2", None, 2)
    with pytest.raises(NotFound):
        await stores.sessions.append_summary(session_key("other"), a_summary("s"), expected=None)


async def test_a_restart_keeps_it(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
        await say(stores, "a", None)
        await stores.sessions.append_summary(KEY, a_summary("s", "kept"), expected=NodeId("a-2"))
    async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
        await say(stores, "b", "s")
        path = await stores.sessions.path(KEY, limit=1)

    assert path.summary is not None
    assert (path.summary.message.text, path.summary.message.role) == ("kept", "summary")
