"""Accepting: durable before it is acknowledged, once per key, refused honestly beyond the bounds."""

import anyio
import pytest

from gateway.domain.agents import Address
from gateway.domain.errors import Busy, Conflict, StoreUnavailable, UnknownAgent
from gateway.domain.ids import RunId
from gateway.domain.inbox import Accepted, Inbound, NewEntry
from gateway.domain.ports import Inbox
from gateway.domain.sessions import SessionQuery
from gateway.sessions.intake import QueueBounds
from tests.fakes.model import ScriptedModel, StallingModel, says
from tests.fakes.ports import PartOfInbox
from tests.fakes.store import open_memory
from tests.sessions.stage import staged

HERE = Address("websocket", "p")


async def test_ten_copies_of_one_key_make_one_turn() -> None:
    model = ScriptedModel(says("ok"))
    answers: list[Accepted] = []
    async with open_memory() as stores, staged(model, stores) as stage:

        async def copy() -> None:
            inbound = Inbound(HERE, "hi", key="k", fingerprint="hi")
            answers.append(await stage.front.intake.accept(inbound))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(copy)

    assert len(model.asked) == 1
    assert len({answer.message_id for answer in answers}) == 1
    assert [answer.duplicate for answer in answers].count(False) == 1


async def test_one_key_for_two_messages_is_a_conflict() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await stage.say("hi", key="k", fingerprint="hi")
        with pytest.raises(Conflict):
            await stage.say("ho", key="k", fingerprint="ho")
        assert stage.front.intake.pending <= 1


async def test_beyond_the_bounds_a_message_is_refused_and_nothing_accepted_is_dropped() -> None:
    stalling = StallingModel()
    bounds = QueueBounds(max_pending=2, max_pending_total=3)
    async with open_memory() as stores:
        async with staged(stalling, stores, bounds=bounds) as stage:
            kept = [await stage.say("1"), await stage.say("2")]
            with pytest.raises(Busy, match="of this session"):
                await stage.say("3")
            kept.append(await stage.say("4", peer="other"))
            with pytest.raises(Busy, match="waiting already"):
                await stage.say("5", peer="third")
            stage.lanes._group.cancel_scope.cancel()
        left = await stores.inbox.unfinished()

    assert [entry.new.run_id for entry in left] == kept


async def test_a_closed_reception_refuses() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        stage.front.intake.close()
        with pytest.raises(Busy, match="restarting"):
            await stage.say("hi")


async def test_nothing_comes_in_before_what_an_earlier_process_left_is_lined_up() -> None:
    async with open_memory() as stores:
        stalling = StallingModel()
        async with staged(stalling, stores) as stage:
            await stage.say("first")
            await stalling.reached.wait()
            stage.lanes._group.cancel_scope.cancel()
        model = ScriptedModel(says("ok"))
        async with staged(model, stores, ids_from=100, opened=False) as again:
            with pytest.raises(Busy, match="starting"):
                await again.say("second")
            await again.front.intake.resume()
            await again.say("second")

    assert [request.messages[-1].text for request in model.asked] == ["first", "second"]


async def test_what_cannot_be_routed_or_committed_is_not_accepted() -> None:
    class Broken(PartOfInbox):
        def __init__(self, inner: Inbox) -> None:
            self._inner = inner
            self.begin, self.finish, self.unfinished = inner.begin, inner.finish, inner.unfinished

        async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
            raise StoreUnavailable("disk full")

    model = ScriptedModel(says("never"))
    async with open_memory() as stores:
        async with staged(model, stores, inbox=Broken(stores.inbox)) as stage:
            with pytest.raises(UnknownAgent):
                await stage.say("hi", requested_agent="nobody")
            with pytest.raises(StoreUnavailable):
                await stage.say("hi")
            assert stage.front.intake.pending == 0
        page = await stores.sessions.list_sessions(SessionQuery())

    assert model.asked == []
    assert page.sessions == ()


async def test_a_sender_who_vanishes_during_the_commit_is_answered_all_the_same() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores:
        committing, go_on = anyio.Event(), anyio.Event()

        class Slow(PartOfInbox):
            def __init__(self, inner: Inbox) -> None:
                self._inner = inner
                self.begin, self.finish = inner.begin, inner.finish
                self.unfinished = inner.unfinished

            async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
                committing.set()
                await go_on.wait()
                return await self._inner.accept(entry, begin=begin)

        async with (
            staged(model, stores, inbox=Slow(stores.inbox)) as stage,
            anyio.create_task_group() as sender,
        ):
            sender.start_soon(stage.say, "hi")
            await committing.wait()
            sender.cancel_scope.cancel()
            go_on.set()
        done = await stores.inbox.find_run(RunId("r_" + "1".zfill(26)))

    assert len(model.asked) == 1
    assert done is not None
    assert done.outcome == "answered"


@pytest.mark.requirement("S-003-Session-03")
async def test_a_session_begins_with_its_first_message() -> None:
    async with open_memory() as stores:
        async with staged(ScriptedModel(says("ok")), stores) as stage:
            before = await stores.sessions.count_sessions()
            await stage.say("hi")
        assert (before, await stores.sessions.count_sessions()) == (0, 1)
