"""What a model is asked for facts, and what of its reply is believed."""

import json
from datetime import UTC, datetime
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Payer
from gateway.domain.facts import SaidMessage
from gateway.domain.ids import AgentId, NodeId, RunId
from gateway.memory.extraction import MOST_CLAIMS, SHOWN_CHARACTERS, claims_of, request
from tests.fakes.store import session_key

NOW = datetime(2026, 11, 18, 15, 30, tzinfo=UTC)
KEY = session_key()
AGENT = AgentDef(AgentId("demo"), "fake", "fake-1", max_tokens=300)
SAID = (
    SaidMessage(NodeId("m1"), RunId("r1"), "ann", "I moved to Oslo last week with Rex", NOW),
    SaidMessage(NodeId("m2"), RunId("r2"), "ann", "Rex sees Dr. Ek", NOW),
)
GOOD = {
    "message": 1,
    "quote": "I moved to Oslo last week",
    "subject": "user",
    "predicate": "Lives in",
    "object": "Oslo",
    "type": "attribute",
    "functional": True,
    "valid_from": "2026-11-09",
    "valid_to": None,
    "confidence": 0.9,
}


def read(*facts: object) -> Any:
    return claims_of(json.dumps({"facts": facts}), KEY, SAID)


def test_a_model_is_shown_only_what_one_person_said_with_its_date() -> None:
    asked = request(AGENT, KEY, SAID, ())

    (message,) = asked.messages
    shown = json.loads(message.text)
    assert message.role == "user"
    assert [one["text"] for one in shown["messages"]] == [one.text for one in SAID]
    assert shown["messages"][0]["date"] == "Wednesday 2026-11-18 15:30 UTC"
    assert (asked.payer, asked.max_tokens, asked.tools) == (Payer(KEY, RunId("r2")), 300, ())


def test_a_long_message_is_shown_in_part() -> None:
    long = SaidMessage(NodeId("m1"), RunId("r1"), None, "x" * 100_000, NOW)

    asked = request(AGENT, KEY, (long,), ())

    assert len(asked.messages[0].text) < SHOWN_CHARACTERS + 200


def test_a_claim_becomes_one_of_the_person_with_its_source() -> None:
    (claim,) = read(GOOD)

    assert (claim.subject, claim.predicate, claim.object) == ("user", "location", "Oslo")
    assert (claim.functional, claim.confidence) == (True, 0.9)
    assert claim.valid_from == datetime(2026, 11, 9, tzinfo=UTC)
    assert (claim.source.message_id, claim.source.said_by) == ("m1", "ann")
    assert claim.source.quote == GOOD["quote"]


def test_a_relative_date_is_resolved_here_when_the_model_gives_none_that_can_be() -> None:
    (unsaid,) = read({**GOOD, "valid_from": None})
    (future,) = read({**GOOD, "valid_from": "2031-01-01"})
    (undated,) = read({**GOOD, "quote": "I moved to Oslo", "valid_from": "soon"})

    assert unsaid.valid_from == future.valid_from == datetime(2026, 11, 9, tzinfo=UTC)
    assert undated.valid_from == NOW
    assert read({**GOOD, "quote": "I moved to Oslo", "valid_from": "2031-01-01"}) == ()


@pytest.mark.parametrize("valid_from", [None, "2026-12-01", "2026-11-18"])
def test_what_is_still_to_come_is_no_fact(valid_from: str | None) -> None:
    text = "I move to Berlin next month"
    soon = SaidMessage(NodeId("m1"), RunId("r1"), "ann", text, NOW)
    facts = [{**GOOD, "quote": text, "object": "Berlin", "valid_from": valid_from}]

    assert claims_of(json.dumps({"facts": facts}), KEY, (soon,)) == ()


def test_a_third_party_is_a_subject_of_its_own() -> None:
    (claim,) = read({**GOOD, "message": 2, "quote": "Rex sees Dr. Ek", "subject": "Rex"})

    assert claim.subject == "Rex"


def test_what_many_can_have_is_not_made_functional_by_a_model() -> None:
    (claim,) = read({**GOOD, "predicate": "likes"})

    assert not claim.functional


@pytest.mark.parametrize(
    "wrong",
    [
        {"quote": "I moved to Bergen"},  # invented
        {"quote": "Rex sees Dr. Ek"},  # of another message
        {"quote": ""},
        {"quote": "   "},
        {"quote": None},
        {"message": 3},
        {"message": 0},
        {"message": "1"},
        {"message": True},
        {"confidence": 1.5},
        {"confidence": -0.1},
        {"confidence": "high"},
        {"confidence": True},
        {"object": ""},
        {"object": "x" * 301},
        {"object": ["Oslo"]},
        {"subject": ""},
        {"subject": "x" * 101},
        {"predicate": "!?"},
        {"predicate": None},
    ],
)
def test_a_claim_that_is_not_as_asked_for_is_dropped_and_the_others_stay(
    wrong: dict[str, object],
) -> None:
    claims = read({**GOOD, **wrong}, GOOD, "no claim", None)

    assert [claim.object for claim in claims] == ["Oslo"]


@pytest.mark.parametrize(
    "reply",
    ["", "I found no facts.", "[]", "null", '{"facts": null}', "{" * 100_000, "[" * 60_000],
)
def test_a_reply_that_is_not_the_json_that_was_asked_for_is_none(reply: str) -> None:
    assert claims_of(reply, KEY, SAID) is None


def test_a_fence_around_the_json_is_no_harm() -> None:
    reply = f"```json\n{json.dumps({'facts': [GOOD]})}\n```"

    assert claims_of(reply, KEY, SAID) == read(GOOD)


def test_a_claim_counts_once_and_there_are_never_too_many() -> None:
    many = [{**GOOD, "object": f"place {number}"} for number in range(150)]

    assert len(read(GOOD, GOOD)) == 1
    assert len(read(*many)) == MOST_CLAIMS


@pytest.mark.parametrize("inside", ["\n" * 60_000, " \n" * 30_000, "\n" * 50_000 + "```x"])
def test_no_reply_takes_long_to_refuse(inside: str) -> None:
    before = process_time()

    assert claims_of(f"```json\n{inside}", KEY, SAID) is None
    assert claims_of(f"```json\n{inside}```", KEY, SAID) is None
    assert process_time() - before < 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*GOOD, "facts"]), inner, max_size=9)
    ),
    max_leaves=20,
)


@given(st.builds(lambda own: {**GOOD, **own}, st.dictionaries(st.sampled_from([*GOOD]), JSON)))
def test_whatever_a_model_says_of_a_fact_nothing_breaks_and_the_quote_is_real(
    fact: dict[str, object],
) -> None:
    for claim in claims_of(json.dumps({"facts": [fact]}), KEY, SAID) or ():
        assert claim.source is not None
        assert any(claim.source.quote in one.text for one in SAID)
        assert 0 <= claim.confidence <= 1
        assert claim.valid_from <= NOW
        assert claim.session_key == KEY
