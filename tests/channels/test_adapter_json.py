"""What an adapter says is read strictly where it is about trust, and bounded everywhere."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channels.adapter_json import (
    LARGEST_ANSWER,
    LARGEST_STATE,
    MOST_MESSAGES,
    read_context,
    read_description,
    read_formatted,
    read_parsed,
    write_context,
)
from gateway.channels.adapters import Heartbeat, ReplyContext, Socket, Verify, Webhook
from gateway.domain.errors import AdapterFailed

VERIFY: dict[str, Any] = {"type": "hmac_sha256", "secret": "signing_secret", "header": "x-sig"}
WEBHOOK: dict[str, Any] = {
    "channel": "mini",
    "transports": [{"type": "webhook"}],
    "verify": VERIFY,
    "tools": ["whatever else it says"],
}
SOCKET: dict[str, Any] = {
    "type": "socket",
    "url": "wss://gateway.example.com/?v=10",
    "frames": [
        {"when": {"op": 10}, "keep": {"beat": "d.heartbeat_interval"}, "do": ["beat", "identify"]},
        {"when": {"op": 0}, "do": ["event"], "keep": {"seq": "s"}},
    ],
    "heartbeat": {"frame": {"op": 1, "d": "{kept.seq}"}, "kept_ms": "beat"},
    "identify": {"op": 2, "d": {"token": "${secret:bot_token}"}},
    "fatal_codes": [4004],
}
MESSAGE: dict[str, Any] = {"peer": "p", "sender": {"id": "u"}, "text": "hi", "platform_id": "1"}


def test_a_description_becomes_recipes() -> None:
    found = read_description(json.dumps({**WEBHOOK, "transports": [{"type": "webhook"}, SOCKET]}))

    webhook, socket = found.transports
    assert webhook == Webhook("webhook")
    assert isinstance(socket, Socket)
    assert socket.heartbeat == Heartbeat({"op": 1, "d": "{kept.seq}"}, kept_ms="beat")
    assert found.recipes == (Verify("hmac_sha256", "x-sig", secret="signing_secret"),)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"verify": []}, "verify: required for a webhook"),
        ({"verify": {**VERIFY, "secrte": "x"}}, "secrte"),
        ({"verify": {**VERIFY, "type": "none"}}, "type"),
        ({"verify": {**VERIFY, "secret": None}}, "secret: required for hmac_sha256"),
        (
            {"verify": {**VERIFY, "signs": "{timestamp}{body}"}},
            "{timestamp} and timestamp_header need",
        ),
        (
            {"verify": {**VERIFY, "timestamp_header": "x-time"}},
            "{timestamp} and timestamp_header need",
        ),
        ({"verify": {**VERIFY, "signs": "v0"}}, "must contain {body}"),
        ({"verify": {**VERIFY, "window_s": 86_400}}, "window_s"),
        ({"transports": []}, "at least one"),
        ({"transports": [{"type": "webhook"}, {"type": "webhook"}]}, "each type once"),
        ({"transports": [{**SOCKET, "url": None}]}, "set exactly one"),
        ({"limits": {"text": "long"}}, "limits.text"),
        ({"outbound": {"secrets": ["signing_secret"]}}, "a secret that verifies calls"),
        (
            {
                "transports": [
                    {
                        "type": "webhook",
                        "challenge": {"secret": "verify", "given": "a", "answer": "b"},
                    }
                ],
                "outbound": {"secrets": ["verify"]},
            },
            "a secret that verifies calls",
        ),
        ({"limits": {"text": 0}}, "text: must be 1 to"),
        (
            {"limits": {"rates": [{"scope": "peer", "count": 0, "per_s": 1.0}]}},
            "count: must be 1 to",
        ),
        (
            {"limits": {"rates": [{"scope": "peer", "count": 1, "per_s": 0.0}]}},
            "per_s: must be 0.001 to",
        ),
        ({"outbound": {"edits": True, "edit_every_s": 0.0}}, "edit_every_s: must be 0.1 to"),
        ({"outbound": {"edit_every_s_group": -1.0}}, "edit_every_s_group: must be 0.1 to"),
        ({"outbound": {"typing_every_s": 0.0}}, "typing_every_s: must be 1 to"),
        ({"outbound": {"typing_every_s": float("nan")}}, "a finite number"),
        (
            {"transports": [{**SOCKET, "heartbeat": {"frame": {}, "every_s": float("nan")}}]},
            "a finite number",
        ),
    ],
)
def test_a_recipe_that_proves_nothing_or_is_misspelt_is_refused(
    change: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match="its description is invalid") as refused:
        read_description(json.dumps({**WEBHOOK, **change}))

    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["peer", "platform_id", "thread", "guild", "team"])
@pytest.mark.parametrize("value", ["", "x" * 257])
def test_no_id_is_empty_or_endless(name: str, value: str) -> None:
    with pytest.raises(AdapterFailed, match=name):
        read_parsed(json.dumps({"messages": [{**MESSAGE, name: value}]}))


def test_one_call_makes_so_many_messages_at_most() -> None:
    with pytest.raises(AdapterFailed, match="more than"):
        read_parsed(json.dumps({"messages": [MESSAGE] * (MOST_MESSAGES + 1)}))


def test_what_is_kept_for_an_adapter_is_bounded() -> None:
    fits = {
        "messages": [{**MESSAGE, "answer": {"": "x" * (LARGEST_ANSWER - 7)}}],
        "state": "x" * LARGEST_STATE,
    }
    assert read_parsed(json.dumps(fits)).state == fits["state"]

    for more in (
        {"state": "x" * (LARGEST_STATE + 1)},
        {"messages": [{**MESSAGE, "answer": {"": "x" * (LARGEST_ANSWER - 6)}}]},
    ):
        with pytest.raises(AdapterFailed, match="state is longer|answer is larger"):
            read_parsed(json.dumps({**fits, **more}))


def test_where_an_answer_goes_is_read_as_it_was_written() -> None:
    whence = ReplyContext(
        "p", "t", reply_to="7", is_group=True, answer={"a": [1, None, {"b": "\U0001f600"}]}
    )

    assert read_context(write_context(whence)) == whence


def test_forged_fields_are_no_fields_of_a_message() -> None:
    forged = {**MESSAGE, "agent": "root", "channel": "other", "session_key": "a:b:c:d"}

    (message,) = read_parsed(json.dumps({"messages": [forged]})).messages

    assert not {"agent", "channel", "session_key"} & set(message.__slots__)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_whatever_an_adapter_says_is_read_or_refused(text: str) -> None:
    for read in (read_parsed, read_formatted):
        with pytest.raises(AdapterFailed):
            read(text)
