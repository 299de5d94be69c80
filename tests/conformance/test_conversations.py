"""Whole conversations: begun anew, marked, pruned, taken in, closed, in every store."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.domain.errors import NotFound
from gateway.domain.ids import AgentId, NodeId, SessionKey
from gateway.domain.messages import Message, Node
from gateway.domain.ports import Stores
from gateway.domain.sessions import IMPORTED, ImportRefused
from tests.fakes.store import NOON, an_ending, an_entry, session_key

Open = Callable[[], AbstractAsyncContextManager[Stores]]


async def exchange(stores: Stores, name: str, *, after: str | None = None, most: int = 0) -> None:
    """Nodes NAME-1 and NAME-2."""
    await stores.inbox.accept(an_entry(name), begin=True)
    await stores.inbox.finish(replace(an_ending(name, grown_from=after), most_nodes=most))


async def go_to(stores: Stores, node: str) -> None:
    record = await stores.sessions.find_session(session_key())
    assert record is not None
    await stores.sessions.move_head(session_key(), NodeId(node), expected=record.head)


async def seen(stores: Stores, *, archived: bool = False) -> list[str]:
    tree = await stores.sessions.tree(session_key(), limit=100, archived=archived)
    return [node.id for node in tree]


async def path(stores: Stores, key: SessionKey | None = None) -> list[str]:
    found = await stores.sessions.path(key or session_key(), limit=100)
    return [node.id for node in found.nodes]


def said(id_: str, parent: str | None = None, text: str = "words", role: str = "user") -> Node:
    above = None if parent is None else NodeId(parent)
    return Node(NodeId(id_), above, IMPORTED, Message(role, text), NOON, 3)  # type: ignore[arg-type]  # a test's


# --- begun anew ----------------------------------------------------------------------------------


@pytest.mark.requirement("S-002-CtxTree-01", "S-002-CtxTree-05")
async def test_the_next_message_of_a_new_tree_is_a_root_and_the_old_one_stays(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")

        await stores.sessions.start_over(session_key(), now=NOON)
        await stores.sessions.start_over(session_key(), now=NOON)
        empty = await path(stores)
        await exchange(stores, "b")

        assert empty == []
        assert await path(stores) == ["b-1", "b-2"]
        assert await seen(stores) == ["a-1", "a-2", "b-1", "b-2"]
        await go_to(stores, "a-2")
        assert await path(stores) == ["a-1", "a-2"]


async def test_a_new_tree_makes_a_session_that_was_not_there(opened: Open) -> None:
    async with opened() as stores:
        await stores.sessions.start_over(session_key(), now=NOON)

        record = await stores.sessions.find_session(session_key())
        assert record is not None
        assert (record.head, record.message_count, record.state) == (None, 0, "active")


# --- marked --------------------------------------------------------------------------------------


@pytest.mark.requirement("S-002-CtxTree-06")
async def test_a_label_moves_and_goes_and_a_checkpoint_is_shown(opened: Open) -> None:
    key = session_key()
    async with opened() as stores:
        await exchange(stores, "a")

        await stores.sessions.label_node(key, NodeId("a-1"), "here")
        await stores.sessions.label_node(key, NodeId("a-2"), "here")
        await stores.sessions.checkpoint(key, NodeId("a-1"), is_kept=True)
        tree = await stores.sessions.tree(key, limit=9)
        marks = {node.id: (node.label, node.is_checkpoint) for node in tree}
        await stores.sessions.label_node(key, NodeId("a-2"), None)

        assert marks == {"a-1": (None, True), "a-2": ("here", False)}
        assert await stores.sessions.node(key, "here") is None
        with pytest.raises(NotFound):
            await stores.sessions.label_node(key, NodeId("x"), "there")
        with pytest.raises(NotFound):
            await stores.sessions.checkpoint(session_key("x"), NodeId("a-1"), is_kept=True)


# --- pruned --------------------------------------------------------------------------------------


@pytest.mark.requirement("S-002-CtxTree-06")
async def test_beyond_the_bound_the_branches_off_the_path_are_archived(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        await exchange(stores, "b", after="a-2")
        await go_to(stores, "a-2")
        await exchange(stores, "c", after="a-2")
        await go_to(stores, "a-2")

        await exchange(stores, "d", after="a-2", most=6)

        assert await seen(stores) == ["a-1", "a-2", "c-1", "c-2", "d-1", "d-2"]
        assert len(await seen(stores, archived=True)) == 8
        assert await stores.sessions.node(session_key(), "b-2") is not None


@pytest.mark.requirement("S-002-CtxTree-06")
async def test_labels_checkpoints_and_the_path_to_them_are_never_archived(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        await exchange(stores, "b", after="a-2")
        await exchange(stores, "b2", after="b-2")
        await stores.sessions.label_node(session_key(), NodeId("b-2"), "kept")
        await go_to(stores, "a-2")
        await exchange(stores, "c", after="a-2")
        await stores.sessions.checkpoint(session_key(), NodeId("c-1"), is_kept=True)
        await go_to(stores, "a-2")

        await exchange(stores, "d", after="a-2", most=1)

        assert await seen(stores) == ["a-1", "a-2", "b-1", "b-2", "c-1", "d-1", "d-2"]


async def test_who_goes_back_to_an_archived_branch_sees_it_again(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        await exchange(stores, "b", after="a-2")
        await go_to(stores, "a-2")
        await exchange(stores, "c", after="a-2", most=1)
        before = await seen(stores)

        await go_to(stores, "b-2")

        assert before == ["a-1", "a-2", "c-1", "c-2"]
        assert await seen(stores) == ["a-1", "a-2", "b-1", "b-2", "c-1", "c-2"]


async def test_another_tree_and_a_long_path_are_not_archived(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        await stores.sessions.start_over(session_key(), now=NOON)
        await exchange(stores, "b", most=1)
        await exchange(stores, "c", after="b-2", most=1)

        assert len(await seen(stores)) == 6


# --- closed --------------------------------------------------------------------------------------


@pytest.mark.requirement("S-000-Context-08")
async def test_a_message_to_a_closed_session_opens_it_again(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")

        await stores.sessions.close_session(session_key())
        closed = await stores.sessions.find_session(session_key())
        await stores.inbox.accept(an_entry("b"), begin=False)
        again = await stores.sessions.find_session(session_key())

        assert closed is not None
        assert again is not None
        assert (closed.state, again.state) == ("closed", "active")
        with pytest.raises(NotFound):
            await stores.sessions.close_session(session_key("nobody"))


@pytest.mark.requirement("S-000-Context-13")
async def test_what_was_not_used_for_long_is_closed_and_stays(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        later = NOON + timedelta(days=1)
        care, agent = stores.care, session_key().agent

        none = await care.expire(agent, before=NOON, limit=9)
        others = await care.expire(AgentId("other"), before=later, limit=9)
        closed = await care.expire(agent, before=later, limit=9)
        again = await care.expire(agent, before=later, limit=9)

        assert (none, others, closed, again) == (0, 0, 1, 0)
        assert await path(stores) == ["a-1", "a-2"]


# --- taken in ------------------------------------------------------------------------------------


async def test_what_is_taken_in_twice_is_there_once(opened: Open) -> None:
    nodes = [said("x"), said("y", "x", role="assistant"), said("z", "x", role="assistant")]
    async with opened() as stores:
        first = await stores.sessions.import_nodes(session_key(), nodes, now=NOON)
        again = await stores.sessions.import_nodes(session_key(), nodes, now=NOON)

        assert (first.added, again.added) == (3, 0)
        assert first.head == again.head == "y"
        assert await path(stores) == ["x", "y"]
        assert await seen(stores) == ["x", "y", "z"]
        record = await stores.sessions.find_session(session_key())
        assert record is not None
        assert record.message_count == 3


async def test_the_first_message_after_an_import_is_not_the_first_of_the_session(
    opened: Open,
) -> None:
    async with opened() as stores:
        await stores.sessions.import_nodes(session_key(), [said("x")], now=NOON)

        accepted = await stores.inbox.accept(an_entry("a"), begin=False)

        assert accepted.seq == 2


async def test_what_is_taken_in_goes_on_from_what_is_there(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")

        await stores.sessions.import_nodes(session_key(), [said("x", "a-2")], now=NOON)
        beside = await stores.sessions.import_nodes(session_key(), [said("y", "a-1")], now=NOON)
        await exchange(stores, "b", after="x")

        assert beside.head == "x"
        assert await path(stores) == ["a-1", "a-2", "x", "b-1", "b-2"]


async def test_a_copy_in_another_session_has_ids_of_its_own(opened: Open) -> None:
    nodes, other = [said("x"), said("y", "x")], session_key("other")
    async with opened() as stores:
        await stores.sessions.import_nodes(session_key(), nodes, now=NOON)
        copy = await stores.sessions.import_nodes(other, nodes, now=NOON)
        again = await stores.sessions.import_nodes(other, nodes, now=NOON)

        theirs = await path(stores, other)
        assert (copy.added, again.added) == (2, 0)
        assert set(theirs).isdisjoint(await path(stores))
        assert [name.split("~")[0] for name in theirs] == ["x", "y"]


async def test_an_unknown_parent_is_refused_and_nothing_taken_in(opened: Open) -> None:
    key, other = session_key(), session_key("other")
    async with opened() as stores:
        await stores.sessions.import_nodes(other, [said("theirs")], now=NOON)

        with pytest.raises(ImportRefused, match=r"messages\[1\]\.parent_id: 'theirs'"):
            await stores.sessions.import_nodes(key, [said("x"), said("y", "theirs")], now=NOON)

        assert await stores.sessions.find_session(key) is None


async def test_what_was_taken_in_is_found_by_its_words(opened: Open) -> None:
    async with opened() as stores:
        await stores.sessions.import_nodes(session_key(), [said("x", text="a quokka")], now=NOON)

        behind = await stores.facts.unindexed(limit=9)
        await stores.facts.index_turns(behind, limit=9)

        found = await stores.facts.find_turns(session_key(), ["quokka"], limit=9)
        assert [hits.total for hits in found.words.values()] == [1]
