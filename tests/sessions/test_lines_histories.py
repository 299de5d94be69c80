"""Whatever comes between: every accepted message has one end, in order, and is answered once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.agents import Address
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import Inbound, QueueMode
from gateway.domain.messages import Node
from gateway.domain.ports import Stores
from gateway.sessions.lanes import QueuePolicy
from tests.fakes.model import GatedModel
from tests.fakes.store import open_memory
from tests.forms import is_long
from tests.sessions.stage import AGENT, Stage, staged

Step = tuple[Literal["say", "let", "abort", "move", "breathe", "crash"], int]
TERMINAL = {"done", "error"}
PEERS, SENDERS, FOR_EVER = 2, 2, 1_000

steps = st.lists(
    st.tuples(st.just("say"), st.integers(0, 15))
    | st.tuples(st.just("say"), st.integers(0, 15))
    | st.tuples(st.just("let"), st.integers(1, 3))
    | st.tuples(st.just("abort"), st.integers(0, 9))
    | st.tuples(st.just("move"), st.integers(1, 6))
    | st.tuples(st.just("breathe"), st.integers(0, 40))
    | st.tuples(st.just("crash"), st.just(0)),
    max_size=30,
)


@dataclass
class Message:
    run: str
    text: str
    peer: str
    sender: str
    is_aborted: bool = False


@dataclass
class History:
    """What was done to one gateway after the other over the same store, and what came of it."""

    manner: QueuePolicy
    stores: Stores
    messages: list[Message] = field(default_factory=list)
    heard: list[Mapping[str, Any]] = field(default_factory=list)
    starts: int = 0

    async def live(self, todo: list[Step]) -> None:
        while todo or not self.starts:
            model = GatedModel()
            ids = 1_000 * self.starts
            async with staged(model, self.stores, ids_from=ids, manner=self.manner) as stage:
                await stage.front.intake.resume()
                for message in self.messages:
                    stage.listen(message.run)
                is_dead = False
                while todo and not is_dead:
                    is_dead = await self._do(todo.pop(0), stage, model)
                if not todo and not is_dead:
                    await self._finish(stage, model)
            self.heard += [event for events in stage.heard.values() for event in events]
            self.starts += 1
            if is_dead and not todo:
                todo.append(("breathe", 0))

    async def _do(self, step: Step, stage: Stage, model: GatedModel) -> bool:
        match step:
            case "say", number:
                await self._say(stage, number)
            case "let", count:
                model.let(count)
            case "abort", number if number < len(self.messages):
                message = self.messages[-1 - number]
                run = stage.front.live.get(message.run)
                if run is not None:
                    message.is_aborted = True
                    await stage.front.abort(run, at_once=True)
            case "move", tenths:
                stage.clock.move(tenths / 10)
            case "breathe", count:
                await breathe(count)
            case "crash", _:
                stage.crash()
                return True
        return False

    async def _say(self, stage: Stage, number: int) -> None:
        peer, sender = f"p{number % PEERS}", f"s{number // PEERS % SENDERS}"
        text = f"{'use' if number > 11 else 'text'} {len(self.messages)}"
        inbound = Inbound(Address("websocket", "p", peer, sender=sender), text)
        accepted = await stage.front.intake.accept(inbound)
        stage.listen(accepted.run_id)
        self.messages.append(Message(accepted.run_id, text, peer, sender))

    async def _finish(self, stage: Stage, model: GatedModel) -> None:
        model.let(FOR_EVER)
        while stage.front.intake.pending:
            await breathe(50)
            stage.clock.move(1.0)


async def breathe(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def check(history: History) -> None:
    assert await history.stores.inbox.unfinished() == []
    ends: dict[str, Mapping[str, Any]] = {}
    for message in history.messages:
        record = await history.stores.inbox.find_run(RunId(message.run))
        assert record is not None
        told = [json.loads(line) for line in record.log.split(b"\n")]
        assert [event["type"] in TERMINAL for event in told].count(True) == 1, told
        ends[message.run] = told[-1]
        heard = [e for e in history.heard if e["run_id"] == message.run and e["type"] in TERMINAL]
        assert heard in ([], [told[-1]])
        assert record.outcome == told[-1]["reason"]
    for number in range(PEERS):
        peer = f"p{number}"
        path = await history.stores.sessions.path(
            SessionKey(AGENT.id, "websocket", "p", peer), limit=10_000
        )
        mine = [one for one in history.messages if one.peer == peer]
        check_session(history.manner.mode, mine, path.nodes, ends)
        if not history.manner.debounce_s:
            check_reasons(history.manner.mode, mine, ends)


def check_session(
    mode: QueueMode,
    mine: Sequence[Message],
    nodes: Sequence[Node],
    ends: Mapping[str, Mapping[str, Any]],
) -> None:
    questions = [node.message.text for node in nodes if node.message.role == "user"]
    assert sorted(questions) == sorted(one.text for one in mine)
    # Whoever aborts a message lets those behind it go first.
    aborted = {one.text for one in mine if one.is_aborted and mode == "steer"}
    in_order = [one.text for one in mine if one.text not in aborted]
    assert [text for text in questions if text not in aborted] == in_order
    by_run = {one.run: one for one in mine}
    places = {node.id: place for place, node in enumerate(nodes)}
    for one in mine:
        end = ends[one.run]
        place = next(n for n, node in enumerate(nodes) if node.message.text == one.text)
        carrier = end.get("merged_into", one.run)
        assert end["message_id"] == ends[carrier]["message_id"]
        assert by_run[carrier].sender == one.sender
        for node in nodes[place + 1 : places[end["message_id"]] + 1]:
            assert node.run_id == carrier or ends[node.run_id]["merged_into"] == carrier


def check_reasons(
    mode: QueueMode, mine: Sequence[Message], ends: Mapping[str, Mapping[str, Any]]
) -> None:
    usual = {"answered", "cancelled"}
    more = {"collect": {"merged"}, "steer": {"merged"}, "interrupt": {"superseded"}}
    reasons = [ends[one.run]["reason"] for one in mine]
    assert set(reasons) <= usual | more.get(mode, set())
    if mode == "interrupt" and mine and not mine[-1].is_aborted:
        assert reasons[-1] == "answered"
    if not any(one.is_aborted for one in mine):
        assert "cancelled" not in reasons


@pytest.mark.requirement("S-003-Session-08", "S-004-Flow-03")
@pytest.mark.parametrize("debounce_s", [0.0, 0.3])
@pytest.mark.parametrize("mode", ["followup", "collect", "steer", "interrupt"])
@settings(
    max_examples=100 if is_long() else 10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(todo=steps)
def test_every_message_has_one_end_whatever_happens(
    mode: QueueMode, debounce_s: float, todo: list[Step]
) -> None:
    async def play() -> None:
        async with open_memory() as stores:
            history = History(QueuePolicy(mode, debounce_s), stores)
            await history.live(list(todo))
            await check(history)

    anyio.run(play)
