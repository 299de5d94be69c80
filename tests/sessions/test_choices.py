"""What was chosen for a session holds for it alone, and not for ever."""

from gateway.sessions.lanes import MOST_KNOWN, NOTHING, SessionChoice, SessionChoices
from tests.fakes.store import session_key


def test_a_choice_is_of_one_session() -> None:
    choices, key = SessionChoices(), session_key()

    choices.choose(key, SessionChoice("big"))
    choices.choose(key, SessionChoice("big", "steer"))

    assert choices.of(key) == SessionChoice("big", "steer")
    assert choices.of(key._replace(peer="other")) == NOTHING


def test_a_choice_is_forgotten() -> None:
    choices, key = SessionChoices(), session_key()
    choices.choose(key, SessionChoice("big"))

    choices.forget(key)
    choices.forget(key)

    assert choices.of(key) == NOTHING


def test_the_oldest_choice_is_forgotten_when_there_are_too_many() -> None:
    choices = SessionChoices()
    for number in range(MOST_KNOWN + 1):
        choices.choose(session_key(f"p{number}"), SessionChoice("big"))

    assert choices.of(session_key("p0")) == NOTHING
    assert choices.of(session_key("p1")).model == "big"
