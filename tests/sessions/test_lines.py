"""Messages that come before a turn is over: each has one end, in order, in every mode."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from gateway.domain.agents import Address, Limits
from gateway.domain.errors import GatewayError
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.inbox import Ending, Inbound, QueueMode, RunRecord
from gateway.domain.messages import Node
from gateway.domain.model import TextDelta
from gateway.domain.ports import Inbox, Stores
from gateway.sessions.lanes import MOST_TOGETHER, QueuePolicy
from gateway.sessions.worker import MOST_ATTEMPTS
from tests.fakes.model import GatedModel, ScriptedModel, says
from tests.fakes.ports import PartOfInbox
from tests.fakes.store import an_ending, open_memory
from tests.fakes.tools import FakeTool
from tests.sessions.stage import AGENT, Stage, staged

KEY = SessionKey(AGENT.id, "websocket", "p")
COLLECT, STEER, INTERRUPT = QueuePolicy("collect"), QueuePolicy("steer"), QueuePolicy("interrupt")


async def told(stores: Stores) -> Sequence[Node]:
    return (await stores.sessions.path(KEY, limit=1_000)).nodes


async def texts(stores: Stores) -> list[str]:
    return [node.message.text for node in await told(stores)]


async def ended(stores: Stores, run: str) -> RunRecord:
    record = await stores.inbox.find_run(RunId(run))
    assert record is not None
    return record


def end_of(stage: Stage, run: str) -> dict[str, Any]:
    (end,) = (event for event in stage.heard[run] if event["type"] in {"done", "error"})
    assert end is stage.heard[run][-1]
    return end


async def say_all(stage: Stage, *contents: str) -> list[str]:
    return [await stage.say(content) for content in contents]


async def breathe() -> None:
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


class RefusesOne(PartOfInbox):
    """An inbox that refuses the first answer, as it would a broken character."""

    def __init__(self, inner: Inbox) -> None:
        self._inner, self._left = inner, 1
        self.accept, self.begin, self.unfinished = inner.accept, inner.begin, inner.unfinished

    async def finish(self, ending: Ending) -> bool:
        if self._left:
            self._left -= 1
            raise GatewayError("this text cannot be stored")
        return await self._inner.finish(ending)


# --- collect ------------------------------------------------------------------------------------


@pytest.mark.requirement("S-004-Flow-03")
async def test_what_waits_is_answered_by_one_turn_and_each_hears_of_its_end() -> None:
    model = GatedModel()
    async with open_memory() as stores:
        async with staged(model, stores, manner=COLLECT) as stage:
            first, *merged, last = await say_all(stage, "1", "2", "3", "4")
            await model.until_asked(1)
            before = [len(stage.heard[run]) for run in merged]
            model.let(2)
        nodes, record = await told(stores), await ended(stores, merged[0])

    assert model.questions == [["1"], ["2", "3", "4"]]
    assert [node.message.text for node in nodes] == ["1", "to 1", "2", "3", "4", "to 2 3 4"]
    assert [node.run_id for node in nodes[2:]] == [*merged, last, last]
    assert before == [0, 0]
    assert end_of(stage, first)["reason"] == end_of(stage, last)["reason"] == "answered"
    for run in merged:
        end = end_of(stage, run)
        assert (end["reason"], end["merged_into"], end["seq"]) == ("merged", last, 1)
        assert end["message_id"] == end["context_id"] == nodes[-1].id
    assert (record.outcome, record.entry.state) == ("merged", "done")
    assert json.loads(record.log) == end_of(stage, merged[0])
    assert json.loads(record.summary)["merged_into"] == last


async def test_followup_gives_each_its_own_turn() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores) as stage:
        runs = await say_all(stage, "1", "2", "3")

    assert [end_of(stage, run)["reason"] for run in runs] == ["answered"] * 3
    assert len(model.asked) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"sender": "bob"},
        {"limits": {"token_budget": 2_000}},
        {"context": True},
        {"whence": '{"peer":"room","thread":"t"}'},
    ],
    ids=str,
)
async def test_what_another_said_or_said_elsewhere_is_answered_by_itself(
    other: dict[str, Any],
) -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=COLLECT) as stage:
        await stage.say("1")
        await model.until_asked(1)
        model.let(1)
        await model.until_asked(1)
        await stage.until_idle()
        head = (await told(stores))[-1].id
        await stage.say("2")
        await model.until_asked(2)
        for content, more in (("3", {}), ("4", other), ("5", {})):
            address = Address("websocket", "p", sender=more.get("sender"))
            context = NodeId(head) if "context" in more else None
            limits = more.get("limits", {})
            whence = more.get("whence")
            inbound = Inbound(address, content, context_id=context, limits=limits, whence=whence)
            await stage.front.intake.accept(inbound)
        model.let(9)

    assert model.questions[2:] == [["3"], ["4"], ["5"]]


async def test_only_so_many_are_answered_by_one_turn() -> None:
    model, roomy = (
        GatedModel(),
        replace(AGENT, context_window=200_000, limits=Limits(token_budget=200_000)),
    )
    async with (
        open_memory() as stores,
        staged(model, stores, agents=(roomy,), manner=COLLECT) as stage,
    ):
        await stage.say("first")
        await model.until_asked(1)
        await say_all(stage, *map(str, range(MOST_TOGETHER + 1)), "x" * 399_998, "yy")
        model.let(9)

    assert [len(asked) for asked in model.questions] == [1, MOST_TOGETHER, 1 + 1, 1]


async def test_a_waiting_message_that_is_aborted_is_cancelled_and_merged_with_none() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=COLLECT) as stage:
        runs = await say_all(stage, "1", "2", "3", "4")
        await model.until_asked(1)
        await stage.abort(runs[2])
        model.let(9)

    reasons = [end_of(stage, run)["reason"] for run in runs]
    assert reasons == ["answered", "answered", "cancelled", "answered"]
    assert model.questions == [["1"], ["2"], ["4"]]


async def test_to_abort_a_message_that_is_answered_with_others_stops_their_turn() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=COLLECT) as stage:
        runs = await say_all(stage, "1", "2", "3")
        model.let(1)
        await model.until_asked(2)
        await stage.abort(runs[1])

    assert [end_of(stage, run)["reason"] for run in runs] == ["answered", "merged", "cancelled"]


@pytest.mark.parametrize("later", ["collect", "followup", "steer"])
async def test_after_a_crash_the_same_are_answered_by_the_same_run_and_no_tool_runs_twice(
    later: QueueMode,
) -> None:
    tool = FakeTool()
    async with open_memory() as stores:
        model = GatedModel()
        async with staged(model, stores, manner=COLLECT, tool=tool) as stage:
            await say_all(stage, "1", "2", "use 3")
            model.let(2)  # the second one asks for a tool
            await model.until_asked(3)
            await stage.say("4")
            stage.crash()
        assert len(tool.calls) == 1
        again = GatedModel()
        again.let(9)
        async with staged(
            again, stores, ids_from=100, manner=QueuePolicy(later), tool=tool
        ) as stage:
            left = [entry.new.run_id for entry in await stores.inbox.unfinished()]
            await stage.front.intake.resume()
            await stage.until_idle()
        outcomes = [(await ended(stores, run)).outcome for run in left]
        said = [node.message.text for node in await told(stores) if node.message.role == "user"]

    assert len(left) == 3
    assert (outcomes, said) == (["merged", "answered", "answered"], ["1", "2", "use 3", "4"])
    assert len(tool.calls) == 1


async def test_an_answer_that_cannot_be_kept_ends_those_it_answered_and_nobody_else() -> None:
    model = GatedModel()
    async with open_memory() as stores:
        inbox = RefusesOne(stores.inbox)
        manner = QueuePolicy("steer", debounce_s=1.0)
        async with staged(model, stores, manner=manner, inbox=inbox) as stage:
            runs = await say_all(stage, "1", "use 2")
            await breathe()
            stage.clock.move(1.0)
            await model.until_asked(1)
            runs += await say_all(stage, "3", "4")
            model.let(9)
        nodes = await told(stores)

    ends = [end_of(stage, run) for run in runs]
    shown = [end.get("merged_into", end["type"]) for end in ends]
    assert shown == [runs[1], "error", "done", runs[2]]
    assert ends[0]["seq"] == 1
    assert ends[0]["message_id"] == ends[1]["context_id"] == nodes[2].id
    questions = [node.message.text for node in nodes if node.message.role == "user"]
    assert questions == ["1", "use 2", "3", "4"]


async def test_a_channel_brings_out_one_answer_to_all_that_were_merged() -> None:
    model = GatedModel()
    async with open_memory() as stores:
        channels = frozenset({"websocket"})
        async with staged(model, stores, manner=COLLECT, channels=channels) as stage:
            await say_all(stage, "1", "2", "3")
            model.let(9)
        (first,) = await stores.outbox.due("websocket", now=stage.clock.now(), limit=10)
        await stores.outbox.settle(first.new.id, "sent", at=stage.clock.now())
        (second,) = await stores.outbox.due("websocket", now=stage.clock.now(), limit=10)
        await stores.outbox.settle(second.new.id, "sent", at=stage.clock.now())
        rest = await stores.outbox.due("websocket", now=stage.clock.now(), limit=10)

    assert (first.new.text, second.new.text, rest) == ("to 1", "to 2 3", [])


async def test_messages_that_stop_the_gateway_together_are_set_aside_together() -> None:
    async with open_memory() as stores:
        async with staged(GatedModel(), stores, manner=COLLECT) as stage:
            runs = await say_all(stage, "1", "2")
            stage.crash()
        await stores.inbox.finish(replace(an_ending("1", KEY), run_id=RunId(runs[0])))
        async with staged(GatedModel(), stores, manner=COLLECT, ids_from=10) as stage:
            runs = [runs[1], await stage.say("3")]
            stage.crash()
        for _ in range(MOST_ATTEMPTS):
            await stores.inbox.begin(RunId(runs[1]))
        async with staged(GatedModel(), stores, manner=COLLECT, ids_from=20) as stage:
            await stage.front.intake.resume()
            for run in runs:
                stage.listen(run)

    ends = [end_of(stage, run) for run in runs]
    assert ends[0]["merged_into"] == runs[1]
    assert "set aside" in ends[1]["message"]


# --- interrupt ----------------------------------------------------------------------------------


async def test_the_newest_stops_what_is_before_it_and_what_was_said_is_kept() -> None:
    model = GatedModel(TextDelta("half"))
    async with open_memory() as stores:
        async with staged(model, stores, manner=INTERRUPT) as stage:
            first = await stage.say("1")
            await model.until_asked(1)
            second, third = await say_all(stage, "2", "3")
            await model.until_asked(2)
            model.let(1)
        kept = await texts(stores)

    ends = [end_of(stage, run) for run in (first, second, third)]
    assert [end["reason"] for end in ends] == ["superseded", "superseded", "answered"]
    assert (ends[0]["response"], ends[0]["partial"]) == ("half", True)
    assert kept[:3] == ["1", "half", "2"]
    assert model.questions == [["1"], ["3"]]


async def test_an_answer_that_is_being_committed_is_not_superseded() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores, manner=INTERRUPT) as stage:
        first = await stage.say("1")
        run = stage.front.live.get(first)
        assert run is not None
        while not run.sealed:
            await anyio.lowlevel.checkpoint()
        second = await stage.say("2")

    assert [end_of(stage, run)["reason"] for run in (first, second)] == ["answered", "answered"]


# --- steer --------------------------------------------------------------------------------------


async def test_the_turn_at_work_takes_what_is_said_instead_of_calling_tools() -> None:
    model, tool = GatedModel(), FakeTool()
    async with open_memory() as stores:
        async with staged(model, stores, manner=STEER, tool=tool) as stage:
            first = await stage.say("use 1")
            await model.until_asked(1)
            second, third = await say_all(stage, "2", "3")
            model.let(2)
        nodes = await told(stores)

    shown = [(node.message.role, node.run_id) for node in nodes]
    roles = [("user", first), ("assistant", first), ("tool", first)]
    assert shown == [*roles, ("user", second), ("user", third), ("assistant", first)]
    result = nodes[2].message.result
    assert result is not None
    assert (result.content, tool.calls) == ("Skipped due to queued user message.", [])
    assert end_of(stage, first)["reason"] == "answered"
    for run in (second, third):
        assert (end_of(stage, run)["reason"], end_of(stage, run)["merged_into"]) == (
            "merged",
            first,
        )
        assert end_of(stage, run)["message_id"] == nodes[-1].id


async def test_what_a_turn_did_not_take_gets_its_own() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=STEER) as stage:
        first = await stage.say("1")
        await model.until_asked(1)
        second, third = await say_all(stage, "2", "3")
        model.let(9)

    assert end_of(stage, first)["reason"] == "answered"
    assert end_of(stage, third)["merged_into"] == second
    assert model.questions == [["1"], ["2", "3"]]


async def test_nobody_steers_the_turn_of_another_and_nobody_overtakes_him() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=STEER) as stage:
        await stage.say("use 1")
        await model.until_asked(1)
        bob = Inbound(Address("websocket", "p", sender="bob"), "2")
        await stage.front.intake.accept(bob)
        await stage.say("3")
        model.let(9)

    assert model.questions == [["use 1"], [], ["2"], ["3"]]


async def test_what_was_said_and_is_aborted_is_not_taken() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=STEER) as stage:
        runs = [await stage.say("use 1")]
        await model.until_asked(1)
        runs += await say_all(stage, "2", "3")
        await stage.abort(runs[1])
        model.let(9)

    assert [end_of(stage, run)["reason"] for run in runs] == ["answered", "cancelled", "merged"]
    assert model.questions == [["use 1"], ["3"]]


async def test_to_abort_what_a_turn_has_taken_stops_that_turn() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=STEER) as stage:
        first = await stage.say("use 1")
        await model.until_asked(1)
        second = await stage.say("2")
        model.let(1)
        await model.until_asked(2)
        await stage.abort(second)

    assert [end_of(stage, run)["reason"] for run in (first, second)] == ["cancelled", "merged"]


async def test_what_a_turn_has_taken_stays_with_it_when_its_session_is_withdrawn() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, manner=STEER) as stage:
        first = await stage.say("use 1")
        await model.until_asked(1)
        second = await stage.say("2")
        model.let(1)
        await model.until_asked(2)
        await stage.say("3")
        withdrawn = stage.front.intake.queues.withdraw(lambda _: True)
        model.let(9)

    assert [one.new.content for one in withdrawn] == ["3"]
    assert [end_of(stage, run)["reason"] for run in (first, second)] == ["answered", "merged"]


async def test_after_a_crash_a_turn_takes_the_same_again_and_nobody_else() -> None:
    async with open_memory() as stores:
        model = GatedModel()
        async with staged(model, stores, manner=STEER) as stage:
            first = await stage.say("use 1")
            await model.until_asked(1)
            second = await stage.say("2")
            model.let(1)
            await model.until_asked(2)
            third = await stage.say("3")
            stage.crash()
        again = GatedModel()
        async with staged(again, stores, ids_from=100, manner=STEER) as stage:
            await stage.front.intake.resume()
            for run in (first, second, third):
                stage.listen(run)
            await again.until_asked(1)
            fourth = await stage.say("4")
            again.let(9)

    assert [text for text in again.seen[0] if text.isdigit()] == ["2"]
    assert end_of(stage, second)["merged_into"] == first
    assert end_of(stage, third)["reason"] == "answered"
    assert end_of(stage, fourth)["merged_into"] == third


# --- debounce -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["followup", "collect", "steer"])
async def test_a_first_message_waits_for_more_and_each_restarts_the_wait(mode: QueueMode) -> None:
    model = GatedModel()
    model.let(9)
    manner = QueuePolicy(mode, debounce_s=1.0)
    async with open_memory() as stores, staged(model, stores, manner=manner) as stage:
        for content in "123":
            await stage.say(content)
            await breathe()
            stage.clock.move(0.6)
            await breathe()
        assert model.questions == []
        stage.clock.move(0.5)

    assert model.questions == [["1", "2", "3"]]


async def test_what_comes_after_the_wait_gets_turns_of_its_own() -> None:
    model = GatedModel()
    manner = QueuePolicy(debounce_s=1.0)
    async with open_memory() as stores, staged(model, stores, manner=manner) as stage:
        await say_all(stage, "1", "2", "3")
        await breathe()
        stage.clock.move(1.0)
        await model.until_asked(1)
        await say_all(stage, "4", "5", "6")
        model.let(9)

    assert model.questions == [["1", "2", "3"], ["4"], ["5"], ["6"]]


async def test_the_wait_ends_however_many_come() -> None:
    model = GatedModel()
    model.let(9)
    manner = QueuePolicy(debounce_s=1.0)
    async with open_memory() as stores, staged(model, stores, manner=manner) as stage:
        for _ in range(12):
            await stage.say("more")
            await breathe()
            stage.clock.move(0.9)
            await breathe()

    assert model.questions == [["more"] * 12]


async def test_of_those_that_came_in_one_wait_the_newest_is_answered_when_it_interrupts() -> None:
    model = GatedModel()
    model.let(9)
    manner = QueuePolicy("interrupt", debounce_s=1.0)
    async with open_memory() as stores, staged(model, stores, manner=manner) as stage:
        runs = await say_all(stage, "1", "2", "3")
        await stage.clock.until_someone_sleeps()
        stage.clock.move(1.1)

    reasons = [end_of(stage, run)["reason"] for run in runs]
    assert reasons == ["superseded", "superseded", "answered"]
    assert model.questions == [["3"]]


async def test_a_message_that_waits_for_more_has_not_begun() -> None:
    manner = QueuePolicy(debounce_s=1.0)
    async with open_memory() as stores, staged(GatedModel(), stores, manner=manner) as stage:
        await stage.say("1")
        (entry,) = await stores.inbox.unfinished()
        stage.crash()

    assert (entry.state, entry.attempts) == ("queued", 0)


async def test_a_gateway_that_ends_during_the_wait_loses_nothing() -> None:
    manner = QueuePolicy("collect", debounce_s=1.0)
    async with open_memory() as stores:
        async with staged(GatedModel(), stores, manner=manner) as stage:
            await say_all(stage, "1", "2")
            await stage.clock.until_someone_sleeps()
            stage.crash()
        model = GatedModel()
        model.let(9)
        async with staged(model, stores, ids_from=100, manner=manner) as stage:
            await stage.front.intake.resume()

    assert model.questions == [["1", "2"]]
