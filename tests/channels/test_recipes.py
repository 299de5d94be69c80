"""Recipes brought to life: nothing that a value says changes what is asked, or calls for a secret."""

import json
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channels.adapters import CallRecipe
from gateway.channels.recipes import (
    RecipeUnfilled,
    Values,
    at,
    fill_call,
    fill_frame,
    fill_url,
    fits,
)
from gateway.domain.errors import Denied

FRAME = {"op": 0, "d": {"id": "x", "list": [{"n": 1}, None]}, "ok": True, "s": None}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("op", 0),
        ("d.id", "x"),
        ("d.list.0.n", 1),
        ("d.list.1", None),
        ("d.list.2", None),
        ("d.list.-1", None),
        ("d.list." + "9" * 5_000, None),
        ("d.id.x", None),
        ("nothing.there", None),
    ],
)
def test_a_path_leads_into_objects_and_lists(path: str, value: object) -> None:
    assert at(FRAME, path) == value


@pytest.mark.parametrize(
    ("when", "met"),
    [
        ({}, True),
        ({"op": 0, "d.id": "x"}, True),
        ({"op": 1}, False),
        ({"op": False}, False),  # 0 is no false
        ({"ok": 1}, False),
        ({"op": "0"}, False),
        ({"s": None, "absent": None}, True),
        ({"op": None}, False),
    ],
)
def test_a_condition_is_met_if_every_path_leads_to_its_value(
    when: dict[str, object], met: bool
) -> None:
    assert fits(when, FRAME) is met


def test_a_recipe_becomes_the_request_that_it_describes() -> None:
    recipe = CallRecipe(
        "{api_base}/bot${secret:token}/setWebhook?url={webhook_url}&state={state}",
        "POST",
        {"x-chat": "{config.chat}"},
        '{"offset": "{config.offset}", "text": "at {config.chat}", "all": ["{config.kinds}"]}',
    )
    values = Values(
        api_base="https://api.example/",
        webhook_url="https://me.example/webhooks/a",
        state="a b&c",
        config={"chat": "\N{SNOWMAN}", "offset": 7, "kinds": ["m"]},
    )

    ask = fill_call(recipe, values, 5.0)

    assert ask.url == (
        "https://api.example/bot${secret:token}/setWebhook"
        "?url=https://me.example/webhooks/a&state=a%20b%26c"
    )
    assert (ask.method, ask.headers, ask.timeout_s) == ("POST", (("x-chat", "\N{SNOWMAN}"),), 5.0)
    assert json.loads(ask.body) == {"offset": 7, "text": "at \N{SNOWMAN}", "all": [["m"]]}


def test_a_body_that_is_no_json_is_filled_as_text() -> None:
    ask = fill_call(CallRecipe("https://a", body="n={config.n}"), Values(config={"n": 2}))

    assert ask.body == b"n=2"


def test_a_body_that_only_looks_like_json_is_refused() -> None:
    with pytest.raises(Denied, match="not JSON"):
        fill_call(CallRecipe("https://a", body="{nothing}"), Values())


@pytest.mark.parametrize(
    "text", ["{api_base}/x", "{config.chat}", "{kept.session.id}", "{frame.d.none}", "{config.no}"]
)
def test_a_recipe_that_names_something_absent_is_not_made(text: str) -> None:
    with pytest.raises(RecipeUnfilled, match="which has no value"):
        fill_url(text, Values(config={"no": None}, frame=FRAME))


def test_a_state_that_nobody_kept_is_empty() -> None:
    assert fill_url("https://a/?since={state}", Values()) == "https://a/?since="


def test_a_frame_keeps_the_types_of_what_stands_alone() -> None:
    frame = {"op": 6, "d": {"seq": "{kept.seq}", "as": "n{kept.seq}", "list": ("{frame.ok}", None)}}

    text = fill_frame(frame, Values(kept={"seq": 42}, frame=FRAME))

    assert json.loads(text) == {"op": 6, "d": {"seq": 42, "as": "n42", "list": [True, None]}}


@pytest.mark.parametrize("value", ["${secret:token}", ["${secret:token}"], {"a": "x${secret:b}"}])
def test_no_value_calls_for_a_secret(value: object) -> None:
    values = Values(frame={"id": value})

    for frame in ("{frame.id}", "x{frame.id}"):
        with pytest.raises(Denied, match="placeholder"):
            fill_frame({"envelope_id": frame}, values)
    with pytest.raises(Denied, match="placeholder"):
        fill_call(CallRecipe("https://a", headers={"x-id": "{frame.id}"}), values)


def test_nothing_is_filled_into_what_was_filled_in() -> None:
    assert json.loads(fill_frame("a {frame.x}", Values(frame={"x": "{state}"}, state="no"))) == (
        "a {state}"
    )


@given(st.text().filter(lambda text: "${" not in text))
def test_a_value_stays_in_its_parameter_of_a_url(value: str) -> None:
    value = value.encode(errors="ignore").decode()

    url = fill_url("https://a.example/b/{state}?x={state}&y=1", Values(state=value))

    parts = urlsplit(url)
    assert parts.netloc == "a.example"
    assert unquote(parts.path) == f"/b/{value}"
    assert parse_qs(parts.query, keep_blank_values=True) == {"x": [value], "y": ["1"]}
    assert not parts.fragment


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_a_frame_carries_any_value_unchanged(value: object) -> None:
    if value is None or "${" in json.dumps(value):
        return

    assert json.loads(fill_frame({"d": "{frame.v}"}, Values(frame={"v": value}))) == {"d": value}
