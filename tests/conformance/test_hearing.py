"""What every store promises about what was said and not looked at yet."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from gateway.domain.facts import SaidMessage, SaidPage
from gateway.domain.ids import MessageId, NodeId, SessionKey
from gateway.domain.ports import Stores
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key

Open = Callable[[], AbstractAsyncContextManager[Stores]]
HERE, THERE = session_key("here"), session_key("there")


async def a_turn(stores: Stores, name: str, key: SessionKey, *, after: str | None = None) -> None:
    """A question of `ann`, and its answer: nodes NAME-1 and NAME-2."""
    entry = replace(an_entry(name, key), message_id=MessageId(f"{name}-1"), sender="ann")
    await stores.inbox.accept(entry, begin=True)
    await stores.inbox.finish(an_ending(name, key, grown_from=after))


def said(name: str) -> SaidMessage:
    nodes = an_exchange(name)
    return SaidMessage(nodes[0].id, nodes[0].run_id, "ann", "question", NOON)


def heard(name: str, node: int, *names: str) -> SaidPage:
    return SaidPage(tuple(map(said, names)), NodeId(f"{name}-{node}"))


async def test_what_people_said_comes_in_order_with_who_said_it(opened: Open) -> None:
    async with opened() as stores:
        await a_turn(stores, "a", HERE)
        await a_turn(stores, "b", HERE, after="a-2")
        await a_turn(stores, "c", THERE)
        hearing = stores.facts

        whole = await hearing.next_unscanned(HERE, limit=10)
        part = await hearing.next_unscanned(HERE, limit=1)
        nothing = await hearing.next_unscanned(session_key("nowhere"), limit=10)

    assert whole == heard("b", 2, "a", "b")
    assert part == heard("a", 1, "a")
    assert nothing == SaidPage()


async def test_where_looking_stopped_is_where_it_goes_on_and_it_never_goes_back(
    opened: Open,
) -> None:
    async with opened() as stores:
        await a_turn(stores, "a", HERE)
        await a_turn(stores, "b", HERE, after="a-2")
        await a_turn(stores, "c", THERE)
        hearing = stores.facts
        assert set(await hearing.unscanned()) == {HERE, THERE}

        await hearing.mark_scanned({HERE: NodeId("a-2"), THERE: NodeId("c-2")})
        await hearing.mark_scanned({HERE: NodeId("a-1")})
        await hearing.mark_scanned({HERE: NodeId("gone"), session_key("nowhere"): NodeId("x")})

        assert await hearing.unscanned() == [HERE]
        assert await hearing.next_unscanned(HERE, limit=10) == heard("b", 2, "b")
        await hearing.mark_scanned({HERE: NodeId("b-2")})
        assert await hearing.unscanned() == []
        assert await hearing.next_unscanned(HERE, limit=10) == SaidPage()


async def test_a_model_is_owed_only_what_it_has_to_look_at(opened: Open) -> None:
    async with opened() as stores:
        await a_turn(stores, "a", HERE)
        await a_turn(stores, "b", HERE, after="a-2")
        hearing = stores.facts
        assert await hearing.next_queued(HERE, limit=10) == SaidPage()

        await hearing.queue_for_model(HERE, NodeId("b-1"))
        await hearing.queue_for_model(HERE, NodeId("gone"))

        assert await hearing.queued_for_model() == [HERE]
        assert await hearing.next_queued(HERE, limit=10) == heard("b", 2, "b")
        assert await hearing.mark_extracted(HERE, NodeId("b-1"))  # the answer is left
        assert not await hearing.mark_extracted(HERE, NodeId("b-2"))
        assert await hearing.queued_for_model() == []
        assert await hearing.next_queued(HERE, limit=10) == SaidPage()


async def test_what_a_model_has_looked_at_is_not_owed_again(opened: Open) -> None:
    async with opened() as stores:
        await a_turn(stores, "a", HERE)
        hearing = stores.facts
        await hearing.queue_for_model(HERE, NodeId("a-1"))
        await hearing.mark_extracted(HERE, NodeId("a-2"))
        await a_turn(stores, "b", HERE, after="a-2")
        await a_turn(stores, "c", HERE, after="b-2")

        await hearing.queue_for_model(HERE, NodeId("a-1"))

        assert await hearing.next_queued(HERE, limit=10) == heard("c", 2, "b", "c")
        assert await hearing.mark_extracted(HERE, NodeId("b-2"))


async def test_what_was_owed_stays_so_whatever_is_owed_besides(opened: Open) -> None:
    async with opened() as stores:
        await a_turn(stores, "a", HERE)
        await a_turn(stores, "b", HERE, after="a-2")

        await stores.facts.queue_for_model(HERE, NodeId("a-1"))
        await stores.facts.queue_for_model(HERE, NodeId("b-1"))

        assert await stores.facts.next_queued(HERE, limit=10) == heard("b", 2, "a", "b")


async def test_what_stands_as_a_users_but_was_not_accepted_was_said_by_nobody(
    opened: Open,
) -> None:
    async with opened() as stores:
        await a_turn(stores, "a", HERE)
        entry = replace(an_entry("b", HERE), message_id=MessageId("b-1"), sender="ann")
        await stores.inbox.accept(entry, begin=True)
        nodes = an_exchange("b", "question", "answer", "inserted by a tool", "another answer")
        await stores.inbox.finish(an_ending("b", HERE, grown_from="a-2", nodes=nodes))

        found = await stores.facts.next_unscanned(HERE, limit=10)

    assert found == heard("b", 4, "a", "b")
