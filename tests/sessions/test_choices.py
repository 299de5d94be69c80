"""What was chosen for a session holds for it alone, and not for ever."""

from dataclasses import dataclass
from typing import Any

from gateway.domain.cluster import Begun, NoHints, Tenure
from gateway.domain.inbox import NO_CHOICE, Entry, SessionChoice
from gateway.sessions.lanes import MOST_KNOWN, TurnBatch
from gateway.sessions.mirrors import Mirrors, SharedRun
from gateway.sessions.partitions import PartitionedWork
from gateway.sessions.runs import LiveRuns
from tests.fakes.clock import FakeClock
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import an_entry, open_memory, session_key
from tests.sessions.stage import staged

KEY = session_key()


async def test_a_choice_is_of_one_session_and_the_oldest_is_forgotten() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        queues = stage.front.intake.queues
        first = SessionChoice("big", "steer")
        queues.choose(session_key("first"), first)
        before = [queues.choice(session_key(peer)) for peer in ("first", "other")]
        for number in range(MOST_KNOWN):
            queues.choose(session_key(f"p{number}"), SessionChoice("big"))
        after = [queues.choice(session_key(peer)) for peer in ("first", "p0")]

    assert before == [first, NO_CHOICE]
    assert after == [NO_CHOICE, SessionChoice("big")]


async def test_an_earlier_choice_of_another_node_does_not_take_the_place_of_a_later_one() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        queues, key = stage.front.intake.queues, session_key()
        queues.choose(key, SessionChoice("later", change=8))
        queues.choose(key, SessionChoice("earlier", change=7))

    assert queues.choice(key).model == "later"


@dataclass
class Beginning:
    """Of the port SharedRuns what begins a run."""

    choice: SessionChoice

    async def begin(self, *_: object, **__: object) -> Begun:
        return Begun(1, 0, None, self.choice)


async def begun(chosen: SessionChoice, known: SessionChoice) -> tuple[str | None, SessionChoice]:
    """The model of a turn, and what its node knows to be chosen then, where that was `known` before."""
    runs: Any = Beginning(chosen)
    about = (runs, LiveRuns(), NoHints(), FakeClock())
    work, tenure = PartitionedWork(*about, 8, 1.0, lambda *_, **__: None), Tenure(KEY, 1)
    run = SharedRun(Entry(an_entry("a"), 1, "queued", 0))
    run.tenure = tenure
    models = list[str | None]()

    async def turn(batch: TurnBatch) -> None:
        await work.begin(run.run_id, tenure)
        models.append(batch.model)
        run.ended = True

    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        place = ("here", *about, 1.0, work.partition, work.figures)
        work.mirrors = Mirrors(*place)
        work.queues = stage.front.intake.queues
        work.queues.choose(KEY, known)
        await work.around(turn)(TurnBatch(run, model=known.model))
        return models[0], work.queues.choice(KEY)


async def test_a_turn_is_as_was_chosen_at_another_node_that_nobody_has_looked_at_since() -> None:
    later = SessionChoice("big", "collect", change=2)

    assert await begun(later, SessionChoice("small", change=1)) == ("big", later)


async def test_a_turn_is_as_configured_if_the_choice_was_taken_back_long_ago() -> None:
    model, _ = await begun(SessionChoice(), SessionChoice("small", change=1))

    assert model is None
