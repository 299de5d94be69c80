"""No part of a platform's payload, turned into something else, breaks an adapter."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channels.adapter_json import read_parsed
from gateway.domain.errors import AdapterFailed
from tests.plugins.running import KINDS, PLUGINS, Guest, Json, cases_of

ODD: list[Json] = [None, True, 0, -1, 1.5, 2**63, 10**400, "", "x" * 5_000, "\0", "👩‍👩‍👧", [], {}]
ODD += [[[]], [None], {"id": None}, {"id": {}}]


def payloads(name: str) -> list[Json]:
    """The inputs of the recorded cases whose body is an object."""
    calls = [case["call"] for case in cases_of(PLUGINS / name)]
    inputs = [call["input"] for call in calls if call["export"] == "parse-incoming"]
    return [one for one in inputs if one.get("body", "").startswith("{") and _is_json(one["body"])]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def places(value: Json) -> Iterator[tuple[Json, Json]]:
    """Every container in it with each of its keys."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inside:
        yield value, key
        if isinstance(part, dict | list):
            yield from places(part)


def why_refused(payload: str) -> str | None:
    try:
        read_parsed(payload)
    except AdapterFailed as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind == "channel"])
def test_an_odd_part_is_left_out_or_refused_and_never_a_crash(name: str) -> None:
    guest, inputs = Guest.load(PLUGINS / name / "tool.wasm"), payloads(name)

    @given(st.data())
    def check(data: st.DataObject) -> None:
        event = dict(data.draw(st.sampled_from(inputs)))
        body = json.loads(event["body"])
        spots = list(places(body))
        if spots:
            container, key = data.draw(st.sampled_from(spots))
            container[key] = data.draw(st.sampled_from(ODD))
        event["body"] = json.dumps(body)

        answer = guest.call("parse-incoming", json.dumps(event))

        if answer.tag == "ok":
            why = why_refused(answer.payload)
            assert why is None or "must have 1 to" in why  # an id that is empty or endless
        else:
            assert len(answer.payload) > 10  # a sentence

    check()
