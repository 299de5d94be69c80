"""What was chosen for a session holds for it alone, and not for ever."""

from gateway.sessions.lanes import MOST_KNOWN, NOTHING, SessionChoice
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import open_memory, session_key
from tests.sessions.stage import staged


async def test_a_choice_is_of_one_session_and_the_oldest_is_forgotten() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        queues = stage.front.intake.queues
        first = SessionChoice("big", "steer")
        queues.choose(session_key("first"), first)
        before = [queues.choice(session_key(peer)) for peer in ("first", "other")]
        for number in range(MOST_KNOWN):
            queues.choose(session_key(f"p{number}"), SessionChoice("big"))
        after = [queues.choice(session_key(peer)) for peer in ("first", "p0")]

    assert before == [first, NOTHING]
    assert after == [NOTHING, SessionChoice("big")]
