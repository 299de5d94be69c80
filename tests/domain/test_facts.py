"""Whose facts are seen where."""

import pytest

from gateway.domain.agents import peer_of
from gateway.domain.facts import FactView, fact_view
from gateway.domain.ids import AgentId, SessionKey


@pytest.mark.parametrize("person", ["ann", "@ann/work:example.org", "~ann"])
def test_a_direct_chat_is_known_as_one_whatever_its_person_is_called(person: str) -> None:
    def seen(room: str, *, is_foreign: bool) -> FactView:
        key = SessionKey(AgentId("a"), "chat", "c", peer_of(room, is_foreign=is_foreign))
        return fact_view(key, person)

    assert seen(person, is_foreign=True).room is None
    assert seen(f"{person}/x", is_foreign=True).room is not None
    assert seen(person, is_foreign=False).room is None
