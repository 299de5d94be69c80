"""Chat completions as servers really send them come to the same sound reply."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import ModelFailed
from gateway.domain.messages import ToolCall, Usage
from gateway.domain.model import ReplyProgress, TextDelta
from tests.providers.asking import KEY, Heard, a_reader, a_request, cut, read_stream, read_whole

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 12, "completion_tokens": 5}


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return event(id="chatcmpl-1", choices=[choice], usage=None)


def usage(**told: Any) -> bytes:
    return event(choices=[], usage=told or USAGE)


def call(
    id: str | None = None, name: str | None = None, args: str | None = None, **more: Any
) -> Any:
    return {"id": id, "function": {"name": name, "arguments": args}, "type": "function", **more}


def calls_of(*events: bytes) -> tuple[ToolCall, ...]:
    return read_stream("openai", [*events, delta("tool_calls"), DONE]).tool_calls


PLAIN = (
    delta(role="assistant", content=""),
    delta(content="Hel"),
    delta(content="lo ✓"),
    delta("stop"),
    usage(),
    DONE,
)


def test_a_plain_stream_is_a_reply_with_its_usage() -> None:
    heard = Heard()

    reply = read_stream("openai", PLAIN, heard)

    assert (reply.text, reply.finish) == ("Hello ✓", "stop")
    assert reply.usage == Usage(input_tokens=12, output_tokens=5)
    assert heard.deltas == [TextDelta("Hel"), TextDelta("lo ✓")]


def test_all_text_of_one_network_read_is_heard_as_one_delta() -> None:
    heard = Heard()

    read_stream("openai", [b"".join(PLAIN)], heard)

    assert heard.deltas == [TextDelta("Hello ✓")]


@pytest.mark.requirement("S-002-LLM-05")
@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("no [DONE]", [delta(content="ok"), delta("stop"), usage()]),
        ("no empty line at the end", [delta(content="ok"), delta("stop"), usage()[:-2]]),
        ("usage rides", [delta(content="ok"), event(choices=[{"delta": {}, "finish_reason": "stop"}], usage=USAGE)]),
        ("usage before", [usage(), delta(content="ok"), delta("stop"), DONE]),
        ("cumulative usage", [usage(prompt_tokens=12, completion_tokens=1), delta("stop", content="ok"), usage()]),
        ("comments", [b": OPENROUTER PROCESSING\n\n", delta(content="ok"), delta("stop"), usage()]),
        ("choices missing", [event(id="x"), delta(content="ok"), event(usage=USAGE), delta("stop"), DONE]),
        ("text after the finish", [delta("stop", content="o"), delta(content="k"), usage(), DONE]),
        ("a null finish afterwards", [delta("stop", content="ok"), delta(None), usage(), DONE]),
        ("CRLF", [b"".join([delta(content="ok"), delta("stop"), usage(), DONE]).replace(b"\n", b"\r\n")]),
        ("content as a list", [delta(content=[{"type": "text", "text": "ok"}]), delta("stop"), usage()]),
        ("another choice", [event(choices=[{"index": 1, "delta": {"content": "no"}}]), delta("stop", content="ok"), usage()]),
        ("unknown keys", [event(obfuscation="x", choices=[{"delta": {"content": "ok", "channel": 1, "token_id": 2}, "finish_reason": "stop"}], usage=USAGE)]),
        ("after [DONE]", [delta("stop", content="ok"), usage(), DONE, delta(content="no")]),
        ("error: null", [event(error=None, choices=[{"delta": {"content": "ok"}}]), delta("stop"), usage()]),
        ("empty data", [b"data:\n\n", delta("stop", content="ok"), usage()]),
    ],
)  # fmt: skip
def test_a_quirk_changes_nothing(name: str, events: Sequence[bytes]) -> None:
    reply = read_stream("openai", events)

    assert (reply.text, reply.finish, reply.usage) == ("ok", "stop", Usage(12, 5)), name


@pytest.mark.requirement("S-002-LLM-06")
@pytest.mark.parametrize(
    "events",
    [
        [delta(reasoning_content="hm"), delta(reasoning_content="m")],
        [delta(reasoning="hm"), delta(reasoning="m")],
        [delta(reasoning="hmm", reasoning_details=[{"type": "reasoning.text", "text": "hmm"}])],
        [delta(reasoning_details=[{"type": "reasoning.text", "text": "hmm", "index": 0}])],
        [delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}])],
        [delta(reasoning="hmm", reasoning_content="hmm")],
    ],
)
def test_thinking_is_heard_once_and_is_no_text(events: list[bytes]) -> None:
    heard = Heard()

    reply = read_stream("openai", [*events, delta("stop", content="ok"), DONE], heard)

    assert (reply.thinking, reply.text) == ("hmm", "ok")
    assert (heard.thinking, heard.text) == ("hmm", "ok")


@pytest.mark.requirement("S-002-LLM-07")
def test_interleaved_calls_are_put_together_by_index() -> None:
    calls = calls_of(
        delta(tool_calls=[call("a", "one", "", index=0)]),
        delta(tool_calls=[call("b", "two", "", index=1)]),
        delta(tool_calls=[call(args='{"x"', index=0)]),
        delta(tool_calls=[call(args='{"y":2}', index=1), call(args=":1}", index=0)]),
    )

    assert calls == (ToolCall("a", "one", '{"x":1}'), ToolCall("b", "two", '{"y":2}'))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # the whole call at once, without an index or an id
        ([call("", "f", '{"a":1}'), call("", "g", '{"b":2}')], [("f", '{"a":1}'), ("g", '{"b":2}')]),
        ([call("", "f", '{"a":1}'), call("", "f", '{"a":2}')], [("f", '{"a":1}'), ("f", '{"a":2}')]),
        # the same index with a new id is another call
        ([call("p", "f", "{}", index=0), call("q", "f", "{}", index=0)], [("f", "{}"), ("f", "{}")]),
        # a name said again in every piece is no longer name
        ([call("p", "f", '{"a"', index=0), call("p", "f", ":1}", index=0)], [("f", '{"a":1}')]),
        ([call("", "f", '{"a"', index=0), call("", "f", ":1}", index=0)], [("f", '{"a":1}')]),
        # an id that changes without a name is still the same call
        ([call("p", "f", '{"a"', index=0), call("q", None, ":1}", index=0)], [("f", '{"a":1}')]),
        # nulls, and no arguments at all
        ([call("p", "f", None, index=0), call(None, None, None, index=0)], [("f", "{}")]),
        ([call("p", "f", "", index=0)], [("f", "{}")]),
        # pieces without an index, by id, and by being the last
        ([call("p", "f", '{"a"'), call("q", "g", "{"), call("p", None, ":1}"), call(None, None, "")], [("f", '{"a":1}'), ("g", "{")]),
        ([call("p", "f", '{"a"'), call(None, None, ":1}")], [("f", '{"a":1}')]),
        # arguments that are an object already
        ([call("p", "f", {"a": 1}, index=0)], [("f", '{"a":1}')]),  # type: ignore[arg-type]  # wrong on purpose
    ],
)  # fmt: skip
def test_pieces_of_calls_find_their_call(
    pieces: list[Any], expected: list[tuple[str, str]]
) -> None:
    calls = calls_of(*(delta(tool_calls=[piece]) for piece in pieces))

    assert [(found.name, found.arguments) for found in calls] == expected
    assert len({found.id for found in calls}) == len(calls)
    assert all(found.id for found in calls)


def test_ids_that_are_missing_or_said_twice_become_unique_and_stay_the_same() -> None:
    events = [delta(tool_calls=[call("x", "f", "{}", index=n)]) for n in (0, 1)]

    once, again = calls_of(*events), calls_of(*events)

    assert once == again
    assert len({found.id for found in once}) == 2


@pytest.mark.parametrize("name", [None, "f" * 257])
def test_a_call_without_a_name_or_with_an_endless_one_is_left_to_the_gate(name: str | None) -> None:
    [found] = calls_of(delta(tool_calls=[call("x", name, "{}", index=0)]))

    assert (found.id, found.name) == ("x", (name or "")[:256])


def test_an_endless_id_is_replaced_and_one_that_carries_a_signature_stays() -> None:
    ids = ["x" * 16_384, "x" * 16_385]

    first, second = calls_of(delta(tool_calls=[call(id, "f", "{}") for id in ids]))

    assert first.id == ids[0]
    assert len(second.id) < 64


@pytest.mark.requirement("S-002-LLM-08")
def test_stop_with_tool_calls_means_tool_calls() -> None:
    piece = call("", "clock", "{}", extra_content={"google": {"thought_signature": "c2ln"}})

    reply = read_stream("openai", [delta("stop", tool_calls=[piece]), delta("stop"), DONE])

    assert reply.finish == "tool_calls"
    assert reply.extras
    assert json.loads(reply.extras.json) == {
        "calls": {reply.tool_calls[0].id: {"google": {"thought_signature": "c2ln"}}}
    }


def test_reasoning_details_are_kept_in_whole_blocks_for_their_provider() -> None:
    pieces = [
        {"type": "reasoning.text", "index": 0, "text": "a"},
        {"type": "reasoning.text", "index": 0, "text": "b", "signature": None},
        {"type": "reasoning.text", "index": 0, "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xx"},
    ]

    reply = read_stream(
        "openai", [*(delta(reasoning_details=[p]) for p in pieces), delta("stop"), DONE]
    )

    assert reply.extras
    assert reply.extras.provider == "custom"
    assert json.loads(reply.extras.json)["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xx"},
    ]


def test_a_call_that_was_cut_off_by_the_length_is_not_made() -> None:
    events = [
        delta(tool_calls=[call("a", "f", '{"x":1}', index=0)]),
        delta(tool_calls=[call("b", "g", '{"dele', index=1)]),
        delta("length"),
    ]

    reply = read_stream("openai", events)

    assert reply.finish == "length"
    assert [found.name for found in reply.tool_calls] == ["f"]


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        {"prompt_tokens": -1, "completion_tokens": 5},
        {"prompt_tokens": 12, "completion_tokens": -5},
        {"prompt_tokens": 10**12, "completion_tokens": 5},
        {"prompt_tokens": 12, "completion_tokens": 10**12},
        {"prompt_tokens": "12", "completion_tokens": None},
        {"prompt_tokens": True, "completion_tokens": 5},
        {"prompt_tokens": 0, "completion_tokens": 0},
        [1, 2],
    ],
)
def test_usage_that_cannot_be_is_estimated_and_says_so(told: object) -> None:
    events = [delta("stop", content="a" * 320), event(choices=[], usage=told)]

    used = read_stream("openai", events).usage

    assert used.estimated
    assert used.input_tokens in {12, 313}  # as told, or from the thousand bytes that were sent
    assert used.output_tokens in {5, 100}


@pytest.mark.parametrize("told", [10**30, -(10**30), True, "3", None, [], 4.5])
def test_details_of_usage_that_cannot_be_are_never_more_than_what_they_are_of(told: object) -> None:
    details = {"cached_tokens": told, "reasoning_tokens": told}
    absurd = {**USAGE, "prompt_tokens_details": details, "completion_tokens_details": details}

    used = read_stream("openai", [delta("stop", content="ok"), usage(**absurd)]).usage

    assert (used.cached_tokens, used.reasoning_tokens) in {(0, 0), (12, 5)}
    assert (used.input_tokens, used.output_tokens) == (12, 5)


def test_details_of_usage_are_read_and_a_providers_own_cost_counts() -> None:
    told = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
        "cost": 0.0125,
    }

    used = read_stream("openai", [delta("stop", content="ok"), usage(**told)]).usage

    assert used == Usage(12, 5, cached_tokens=8, reasoning_tokens=3, cost_usd=0.0125)


@pytest.mark.parametrize("cost", [1e300, 1e12, 10**400, -1.0, True])
def test_a_cost_that_cannot_be_is_not_believed(cost: float) -> None:
    events = [delta("stop", content="ok"), usage(**{**USAGE, "cost": cost})]

    assert read_stream("openai", events).usage == Usage(12, 5)


def test_half_an_escaped_character_is_replaced_and_the_reply_goes_on() -> None:
    halves = [delta(content="a\ud83d"), delta(content="\ude00b"), delta("stop"), DONE]
    heard = Heard()

    reply = read_stream("openai", halves, heard)

    assert b"\\ud83d" in halves[0]
    assert reply.text == heard.text == "a\ufffd\ufffdb"


def test_half_an_escaped_character_deep_inside_is_a_failure_and_never_a_crash() -> None:
    deep: object = "\ud83d"
    for _ in range(300):
        deep = {"a": deep}

    with pytest.raises(ModelFailed) as failed:
        read_stream("openai", [delta(reasoning_details=[deep]), delta("stop"), DONE])

    assert failed.value.kind == "protocol"


def test_a_refusal_is_text_that_ends_as_a_refusal() -> None:
    reply = read_stream("openai", [delta(refusal="I cannot."), delta("stop")])

    assert (reply.text, reply.finish) == ("I cannot.", "refusal")


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([delta(content="half")], "truncated"),
        ([delta(content="half"), DONE], "truncated"),
        ([delta(content="half"), b'data: {"choices":[{"del'], "truncated"),
        ([], "truncated"),
        ([delta(content="a"), event(error={"message": "busy", "code": 429})], "rate"),
        ([event(error={"message": "boom", "type": "server_error"})], "server"),
        ([event(error="just words")], "server"),
        ([b'event: error\ndata: {"message":"over capacity","type":"overloaded_error"}\n\n'], "overloaded"),
        ([b'data: [{"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}]\n\n'], "overloaded"),
        ([delta("error", content="x")], "server"),
        ([b"data: {nonsense}\n\n"], "protocol"),
        ([b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'], "protocol"),
        ([b"data: 5\n\n"], "protocol"),
        ([b"data: [1]\n\n"], "protocol"),
        ([event(choices=[5])], "protocol"),
        ([event(choices=[{"delta": {"content": 5}}])], "protocol"),
        ([event(choices=[{"delta": {"reasoning": {"a": 1}}}])], "protocol"),
        ([event(choices=[{"delta": {"tool_calls": [{"index": [], "id": "x"}]}}])], "protocol"),
        ([event(choices=[{"delta": {"tool_calls": [{"function": {"name": ["x"]}}]}}])], "protocol"),
        ([event(choices=[{"delta": {}, "finish_reason": ["stop"]}])], "protocol"),
        ([b"data: " + b"x" * (1024 * 1024 + 1)], "protocol"),
        ([b"data: " + b"[" * 5000 + b"\n\n"], "protocol"),
    ],
)  # fmt: skip
def test_what_is_not_a_complete_reply_is_a_failure_of_its_kind(
    events: list[bytes], kind: str
) -> None:
    with pytest.raises(ModelFailed) as failed:
        read_stream("openai", events)

    assert failed.value.kind == kind
    assert failed.value.provider == "custom"


def test_a_failure_says_whether_text_was_heard_before() -> None:
    with pytest.raises(ModelFailed) as later:
        read_stream("openai", [delta(content="half"), event(error="x")])
    with pytest.raises(ModelFailed) as at_once:
        read_stream("openai", [delta(content="half") + event(error="x")])
    with pytest.raises(ModelFailed) as thinking:
        read_stream("openai", [delta(reasoning="hm"), delta(reasoning="m"), event(error="x")])

    assert later.value.started
    assert not thinking.value.started  # another attempt may think again
    assert not at_once.value.started  # the text of that same read was never heard


@pytest.mark.parametrize("a_read", [1, 1000])
def test_a_flood_of_small_deltas_is_heard_in_larger_pieces_and_nothing_is_lost(a_read: int) -> None:
    heard = Heard()
    events = [delta(content="a"), delta(reasoning="b")] * 10_000
    reads = [b"".join(events[at : at + a_read]) for at in range(0, 20_000, a_read)]

    reply = read_stream("openai", [*reads, delta("stop"), DONE], heard, a_request(max_tokens=1))

    assert len(heard.deltas) < 1020
    assert reply.text == heard.text == "a" * 10_000
    assert reply.thinking == heard.thinking == "b" * 10_000


@pytest.mark.parametrize(
    "flood",
    [
        delta(tool_calls=[call(index=n) for n in range(2000)]),
        delta(tool_calls=[call(str(n), "f") for n in range(2000)]),
        delta(reasoning_details=[{}] * 70_000),
        b"".join(delta(reasoning_details=[{"kept": "x" * 600_000}]) for _ in range(2)),
        b"".join(
            delta(tool_calls=[call(id, "f", extra_content="x" * 600_000)]) for id in ("a", "b")
        ),
    ],
)
def test_a_flood_of_parts_that_are_no_text_is_cut_off_too(flood: bytes) -> None:
    with pytest.raises(ModelFailed, match="longer than"):
        read_stream("openai", [flood, delta("stop"), DONE])


def test_a_flood_that_breaks_off_has_said_all_that_came() -> None:
    heard = Heard()

    with pytest.raises(ModelFailed) as failed:
        read_stream("openai", [delta(content="a")] * 1500, heard, a_request(max_tokens=1))

    assert (failed.value.kind, failed.value.started) == ("truncated", True)
    assert heard.text == "a" * 1500


def test_an_error_inside_a_stream_never_shows_the_key() -> None:
    with pytest.raises(ModelFailed) as failed:
        read_stream("openai", [event(error={"message": f"bad key {KEY}\n" + "x" * 900})])

    assert KEY not in str(failed.value)
    assert len(failed.value.detail) <= 300


def test_a_reply_without_an_end_is_cut_off_as_a_failure() -> None:
    flood = [delta(content="x" * 100_000)] * 20

    with pytest.raises(ModelFailed, match="longer than") as failed:
        read_stream("openai", flood)

    assert failed.value.kind == "protocol"


def test_a_reply_that_broke_off_says_how_much_of_it_had_come() -> None:
    half = delta(tool_calls=[{"index": 0, **call("a", "echo", '{"text": "x')}])

    progress = ReplyProgress()

    with pytest.raises(ModelFailed):
        read_stream("openai", [delta(content="So: "), half], request=a_request(progress=progress))

    assert progress.size == len("So: ") + len('echo{"text": "x')


@pytest.mark.requirement("S-002-LLM-03")
def test_an_answer_that_is_not_streamed_comes_to_the_same_reply() -> None:
    heard = Heard()
    message = {"content": "Hello ✓", "reasoning_content": "hm", "tool_calls": [call("a", "f", "")]}
    body = {"id": "c", "choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}

    whole = read_whole("openai", json.dumps(body).encode(), heard)
    streamed = read_stream(
        "openai",
        [
            delta(reasoning_content="hm"),
            delta(content="Hello ✓"),
            delta(tool_calls=[call("a", "f", "", index=0)]),
            delta("stop"),
            usage(),
        ],
    )

    assert whole == streamed
    assert (heard.thinking, heard.text) == ("hm", "Hello ✓")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "protocol"),
        (b"<html>", "protocol"),
        (b"{}", "truncated"),
        (b'{"choices":[]}', "truncated"),
        (b'[{"error":{"code":429,"message":"slow down"}}]', "rate"),
        (b'{"choices":[{"message":7}]}', "protocol"),
    ],
)
def test_a_whole_answer_that_is_none_is_a_failure(body: bytes, kind: str) -> None:
    with pytest.raises(ModelFailed) as failed:
        read_whole("openai", body)

    assert failed.value.kind == kind


RICH = b"".join(
    [
        b"\xef\xbb\xbf: hi\r\n\r\n",
        delta(role="assistant", content=None, reasoning="thin"),
        delta(reasoning="king é"),
        delta(content="Grüße "),
        delta(content="🙂!").replace(b"\n", b"\r\n"),
        delta(tool_calls=[call("", "f", "", index=0)]),
        delta(tool_calls=[call(args='{"x":"ß"}', index=0), call("", "g", "{}", index=1)]),
        delta("tool_calls"),
        usage(),
        DONE,
    ]
)


@given(st.lists(st.integers(0, len(RICH)), max_size=30))
def test_any_cutting_of_a_stream_gives_the_same_reply(places: list[int]) -> None:
    heard = Heard()

    reply = read_stream("openai", cut(RICH, places), heard)

    assert reply == read_stream("openai", [RICH])
    assert (
        (heard.text, heard.thinking) == (reply.text, reply.thinking) == ("Grüße 🙂!", "thinking é")
    )


@given(st.binary(max_size=300), st.integers(0, len(RICH)))
def test_garbage_is_a_failure_and_never_a_crash(garbage: bytes, at: int) -> None:
    try:
        reply = read_stream("openai", [RICH[:at], garbage, RICH[at:]])
    except ModelFailed:
        return
    assert reply.finish


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "tool_calls", "function", "name", "arguments",
                 "index", "id", "usage", "finish_reason", "reasoning", "reasoning_details", "text",
                 "prompt_tokens", "error", "message", "extra_content", "thinking", "cost"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(JSON, max_size=4))
def test_values_of_any_other_shape_are_a_failure_and_never_a_crash(chunks: list[Any]) -> None:
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    try:
        reply = read_stream("openai", [*events, delta("stop"), DONE])
    except ModelFailed:
        return
    assert isinstance(reply.text, str)


ENVELOPE = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def a_plain_event(text: str, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {**ENVELOPE, "choices": [choice], **more}
    return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


STRANGE = st.sampled_from(
    [
        a_plain_event("a", usage={"prompt_tokens": 1, "completion_tokens": 2}),
        a_plain_event("b", choices=[{"index": 1, "delta": {"content": "other"}}]),
        a_plain_event("c", choices=[{"delta": {"content": "x", "refusal": "no"}}]),
        a_plain_event("d", choices=[{"delta": {"content": "y"}, "finish_reason": "length"}]),
        a_plain_event("e", id='"content":"'),
        a_plain_event("f").replace(b"finish_reason", b'content":"g","finish_reason'),
        a_plain_event("g")[:-1],
        a_plain_event("h").replace(b'"h"', b'"\\u0068\\"'),
        a_plain_event("i").replace(b'"i"', b'"\xff"'),
        a_plain_event("j").replace(b'"j"', b'"\n"'),
        a_plain_event("k").replace(b'"k"', b'"'),
    ]
)


@given(st.lists(st.text(max_size=4).map(a_plain_event) | STRANGE, max_size=8), st.booleans())
def test_events_that_differ_in_their_text_alone_are_read_like_any_other(
    events: list[bytes], is_spaced: bool
) -> None:
    if is_spaced:
        events = [event.replace(b'"content":', b'"content": ') for event in events]

    def outcome(*, is_learning: bool) -> object:
        heard = Heard()
        reader = a_reader("openai", heard)
        try:
            for event in events:
                if not is_learning:
                    reader.around_text = None
                reader.feed(b"data: " + event + b"\n\n")
        except ModelFailed as failed:
            return heard.text, type(failed), failed.detail
        return heard.text, reader.finish, reader.usage(), reader.progress.size

    assert outcome(is_learning=True) == outcome(is_learning=False)


def test_an_error_that_looks_like_text_is_an_error() -> None:
    told = [b"data: " + a_plain_event(text) + b"\n\n" for text in ("a", "b")]

    with pytest.raises(ModelFailed):
        read_stream("openai", [*told, b"event: error\n" + told[0], DONE])
