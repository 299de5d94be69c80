"""Messages as servers of that wire send them come to a sound reply."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import ModelFailed
from gateway.domain.messages import ToolCall, Usage
from gateway.domain.model import ReplyProgress
from tests.providers.asking import Heard, a_request, cut, read_stream, read_whole


def event(type: str, **fields: Any) -> bytes:
    body = json.dumps({"type": type, **fields}, ensure_ascii=False)
    return f"event: {type}\ndata: {body}\n\n".encode()


def start(**usage: Any) -> bytes:
    told = usage or {"input_tokens": 10, "output_tokens": 1}
    return event("message_start", message={"id": "msg_1", "usage": told, "content": []})


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        event("content_block_start", index=index, content_block=begun),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def text(index: int, *pieces: str) -> list[bytes]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": ""}, *deltas)


def tool(index: int, id: str, name: str, *pieces: str) -> list[bytes]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas)


def thinking(index: int, *pieces: str, signature: str = "c2ln") -> list[bytes]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    signed = {"type": "signature_delta", "signature": signature}
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, signed)


def end(reason: str | None = "end_turn", **usage: Any) -> bytes:
    told = usage or {"output_tokens": 7}
    return event("message_delta", delta={"stop_reason": reason}, usage=told)


STOP = event("message_stop")
PING = event("ping")


def test_a_plain_stream_is_a_reply_with_its_cumulative_usage() -> None:
    heard = Heard()

    reply = read_stream("anthropic", [start(), PING, *text(0, "Hel", "lo"), end(), STOP], heard)

    assert (reply.text, reply.finish, heard.text) == ("Hello", "stop", "Hello")
    assert reply.usage == Usage(input_tokens=10, output_tokens=7)
    assert reply.extras is None


def test_cached_input_counts_as_input() -> None:
    told = {"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}

    reply = read_stream("anthropic", [start(**told, output_tokens=1), *text(0, "x"), end(), STOP])

    assert reply.usage == Usage(123, 7, cached_tokens=100, written_tokens=20)


@pytest.mark.parametrize(("fresh", "told"), [(3, Usage(23, 1, written_tokens=20)), (10**12, None)])
def test_what_a_stream_that_breaks_took_in_is_known_from_its_start(
    fresh: int, told: Usage | None
) -> None:
    request = a_request(progress=ReplyProgress())
    events = [start(input_tokens=fresh, cache_creation_input_tokens=20, output_tokens=1)]

    with pytest.raises(ModelFailed):
        read_stream("anthropic", [*events, *text(0, "x")], request=request)

    assert request.progress == ReplyProgress(1, told)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("pause_turn", "pause"),
        ("refusal", "refusal"),
        ("model_context_window_exceeded", "length"),
        ("something_new", "stop"),
    ],
)
def test_a_stop_reason_becomes_a_finish(reason: str, finish: str) -> None:
    assert read_stream("anthropic", [start(), *text(0, "x"), end(reason), STOP]).finish == finish


def test_calls_are_put_together_from_their_pieces() -> None:
    events = [
        start(),
        *text(0, "look"),
        *tool(1, "t1", "one", "", '{"x"', ":1}"),
        PING,
        *tool(2, "t2", "two"),
        end("tool_use"),
        STOP,
    ]

    reply = read_stream("anthropic", events)

    assert reply.tool_calls == (ToolCall("t1", "one", '{"x":1}'), ToolCall("t2", "two", "{}"))
    assert reply.finish == "tool_calls"


def test_thinking_is_heard_apart_and_kept_with_its_signature_and_its_place() -> None:
    heard = Heard()
    hidden = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
    events = [
        start(),
        *thinking(0, "hm", "m"),
        *block(1, hidden),
        *text(2, "é", "x"),
        *tool(3, "t", "f", "{}"),
        end("tool_use"),
        STOP,
    ]

    reply = read_stream("anthropic", events, heard)

    assert (reply.thinking, reply.text, heard.thinking) == ("hmm", "éx", "hmm")
    assert reply.extras
    assert json.loads(reply.extras.json) == {
        "layout": [{"type": "thinking", "thinking": "hmm", "signature": "c2ln"}, hidden, 2, None]
    }


def test_blocks_and_deltas_that_nobody_knows_are_kept_as_they_came() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}
    events = [
        start(),
        *block(0, search, {"type": "input_json_delta", "partial_json": '{"query":"x"}'}),
        *block(1, found),
        *block(2, {"type": "compaction"}, {"type": "compaction_delta", "content": "sum"}),
        event("something_new", anything=1),
        *text(3, "ok"),
        end(),
        STOP,
    ]

    reply = read_stream("anthropic", events)

    assert (reply.text, reply.tool_calls) == ("ok", ())
    assert reply.extras
    assert json.loads(reply.extras.json)["layout"] == [
        search | {"input": {"query": "x"}},
        found,
        {"type": "compaction", "content": "sum"},
        2,
    ]


@pytest.mark.parametrize(
    "events",
    [
        [start(), *text(0, "ok"), end(), STOP],
        [start(), *text(0, "ok"), end()],  # the stop reason, and the end of the bytes
        [start(), *text(0, "ok"), end(), STOP[:-2]],
        [PING, start(), PING, *text(0, "o", "k"), PING, end(), PING, STOP],
        [start(), *text(0, "ok"), end(), end(None), STOP],
    ],
)
def test_a_complete_stream_is_accepted(events: list[bytes]) -> None:
    reply = read_stream("anthropic", events)

    assert (reply.text, reply.finish) == ("ok", "stop")


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([], "truncated"),
        ([start(), *text(0, "half")], "truncated"),
        ([start(), *tool(0, "t", "f", '{"x":')], "truncated"),
        ([start(), event("error", error={"type": "overloaded_error", "message": "busy"})], "overloaded"),
        ([start(), *text(0, "a"), event("error", error={"type": "api_error", "message": "x"})], "server"),
        ([event("error", error={"type": "rate_limit_error", "message": "x"})], "rate"),
        ([event("content_block_delta", index=9, delta={"type": "text_delta", "text": "x"})], "protocol"),
        ([event("content_block_start", index=0, content_block=5)], "protocol"),
        ([event("message_start")], "protocol"),
        ([b"data: {\n\n"], "protocol"),
    ],
)  # fmt: skip
def test_what_is_not_a_complete_reply_is_a_failure_of_its_kind(
    events: list[bytes], kind: str
) -> None:
    with pytest.raises(ModelFailed) as failed:
        read_stream("anthropic", events)

    assert failed.value.kind == kind


def test_a_flood_of_empty_blocks_is_cut_off() -> None:
    flood = b"".join(text(0) * 70_000)
    cuts = range(0, len(flood), 64 * 1024)

    with pytest.raises(ModelFailed, match="longer than"):
        read_stream("anthropic", [start(), *cut(flood, cuts), end(), STOP])


@pytest.mark.parametrize("begun", [{"type": "tool_use", "name": "f"}, {"type": "odd", "odd": 5}])
@pytest.mark.parametrize("piece", [["{"], 5, None])
def test_pieces_that_are_no_text_are_a_failure_and_never_a_crash(
    begun: dict[str, Any], piece: object
) -> None:
    odd = {"type": "input_json_delta", "partial_json": piece}

    with pytest.raises(ModelFailed) as failed:
        read_stream("anthropic", [start(), *block(0, begun, odd), end(), STOP])

    assert failed.value.kind == "protocol"


@pytest.mark.requirement("S-002-LLM-03")
def test_an_answer_that_is_not_streamed_comes_to_the_same_reply() -> None:
    body = {
        "id": "msg_1",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 10, "output_tokens": 7},
    }

    whole = read_whole("anthropic", json.dumps(body).encode())
    streamed = read_stream(
        "anthropic",
        [
            start(),
            *thinking(0, "hm"),
            *text(1, "Hello"),
            *tool(2, "t", "f", '{"x":1}'),
            end("tool_use"),
            STOP,
        ],
    )

    assert whole == streamed


def test_usage_that_is_missing_is_estimated_and_says_so() -> None:
    events: Sequence[bytes] = [
        event("message_start", message={"id": "m"}),
        *text(0, "a" * 32),
        event("message_delta", delta={"stop_reason": "end_turn"}),
        STOP,
    ]

    used = read_stream("anthropic", events).usage

    assert used == Usage(313, 10, estimated=True)


RICH = b"".join(
    [
        start(),
        *thinking(0, "dén", "ke"),
        *text(1, "Grüße ", "🙂!"),
        PING,
        *tool(2, "t", "f", '{"x"', ':"ß"}'),
        end("tool_use"),
        STOP,
    ]
)


@given(st.lists(st.integers(0, len(RICH)), max_size=30))
def test_any_cutting_of_a_stream_gives_the_same_reply(places: list[int]) -> None:
    heard = Heard()

    reply = read_stream("anthropic", cut(RICH, places), heard)

    assert reply == read_stream("anthropic", [RICH])
    assert (heard.text, heard.thinking) == (reply.text, reply.thinking) == ("Grüße 🙂!", "dénke")


@given(st.binary(max_size=300), st.integers(0, len(RICH)))
def test_garbage_is_a_failure_and_never_a_crash(garbage: bytes, at: int) -> None:
    try:
        reply = read_stream("anthropic", [RICH[:at], garbage, RICH[at:]])
    except ModelFailed:
        return
    assert reply.finish


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["index", "id", "usage", "stop_reason", "content_block", "delta", "text", "name",
                 "thinking", "signature", "partial_json", "input", "input_tokens", "message", "data"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip
TYPES = ["message_start", "content_block_start", "content_block_delta", "message_delta", "new"]


@given(st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from(["text", "tool_use", "thinking", "text_delta", "input_json_delta", "x"]), JSON), max_size=5))  # fmt: skip
def test_values_of_any_other_shape_are_a_failure_and_never_a_crash(
    chunks: list[tuple[str, str, Any]],
) -> None:
    events = []
    for type, inner, value in chunks:
        fields = value if isinstance(value, dict) else {"delta": value}
        for key in ("content_block", "delta", "message"):
            if isinstance(fields.get(key), dict):
                fields[key]["type"] = inner
        events.append(event(type, **(fields | {"index": 0})))
    try:
        reply = read_stream("anthropic", [*events, end(), STOP])
    except ModelFailed:
        return
    assert isinstance(reply.text, str)
