"""Whose facts are seen where."""

import pytest

from gateway.domain.bindings import peer_of
from gateway.domain.facts import Whose, whose
from gateway.domain.ids import AgentId, SessionKey


@pytest.mark.parametrize("person", ["ann", "@ann/work:example.org", "~ann"])
def test_a_direct_chat_is_known_as_one_whatever_its_person_is_called(person: str) -> None:
    def seen(channel: str, room: str) -> Whose:
        return whose(SessionKey(AgentId("a"), channel, "c", peer_of(channel, room)), person)

    assert seen("chat", person).room is None
    assert seen("chat", f"{person}/x").room is not None
    assert seen("api", person).room is None
