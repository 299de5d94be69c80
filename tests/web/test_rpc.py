"""JSON-RPC 2.0 as its specification says."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.declarations import Check, Method, Params
from gateway.api.errors import Forbidden, InvalidParams, UnknownMethod
from gateway.api.methods import METHODS
from gateway.api.operating import Ping
from gateway.api.spending import CreateToken
from gateway.domain.errors import Busy, GatewayError, NotFound
from gateway.web import rpc
from gateway.web.identity import LOCAL, Principal
from gateway.web.rpc import Call, Malformed, Registry, Request
from tests.web.running import Bound, ping, registry_of


class Send(Params):
    content: str
    limit: Annotated[int, Check(ge=1)] = 50


def read(value: object) -> rpc.Frame:
    text = value if isinstance(value, str) else json.dumps(value)
    return rpc.read_frame(text, max_depth=64, max_batch=100)


def code(frame: object) -> int:
    assert isinstance(frame, Malformed)
    return int(json.loads(rpc.encode_error(frame.id, frame.error))["error"]["code"])


def test_a_request_and_a_notification_differ_by_the_id() -> None:
    assert read({"jsonrpc": "2.0", "id": 7, "method": "a", "params": {"x": 1}}) == Request(
        7, "a", {"x": 1}
    )
    assert read({"jsonrpc": "2.0", "method": "a"}) == Request(None, "a", {}, is_notification=True)
    assert read({"jsonrpc": "2.0", "id": None, "method": "a"}) == Request(None, "a", {})


@pytest.mark.parametrize("id_", ["x", "", 0, -1, 1.5, 2**63 - 1, None, "ü" * 256])
def test_an_id_comes_back_as_it_was(id_: Any) -> None:
    frame = read({"jsonrpc": "2.0", "id": id_, "method": "a"})

    assert isinstance(frame, Request)
    assert json.loads(rpc.encode_result(frame.id, 1)) == {"jsonrpc": "2.0", "id": id_, "result": 1}


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", -32700),
        ("", -32700),
        ("[1,", -32700),
        ("[" * 20_000, -32700),
        ("1", -32600),
        ("[]", -32600),
        ({"id": 1, "method": "a"}, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "a"}, -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 1}, -32600),
        ({"jsonrpc": "2.0", "id": [], "method": "a"}, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "a"}, -32600),
        ({"jsonrpc": "2.0", "id": "x" * 257, "method": "a"}, -32600),
        ({"jsonrpc": "2.0", "id": 2**63, "method": "a"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "a", "scopes": ["admin"]}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "a", "params": [1]}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "a", "params": "x"}, -32602),
        ([1] * 101, -32600),
    ],
)
def test_what_is_no_request_has_its_code(frame: object, expected: int) -> None:
    assert code(read(frame)) == expected


def test_a_batch_is_judged_item_by_item() -> None:
    frame = read([{"jsonrpc": "2.0", "id": 1, "method": "a"}, 5, []])

    assert isinstance(frame, tuple)
    assert frame[0] == Request(1, "a", {})
    assert [code(item) for item in frame[1:]] == [-32600, -32600]


@given(st.text())
def test_any_text_is_read_without_a_crash(text: str) -> None:
    read(text if text.isprintable() else repr(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text("jsonrpc2.0idmethod", max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "x"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_request_or_has_an_answer(value: object) -> None:
    frame = read(value)
    for item in frame if isinstance(frame, tuple) else (frame,):
        if isinstance(item, Malformed):
            assert json.loads(rpc.encode_error(item.id, item.error))["error"]["code"] < 0


def registry(handler: Any = lambda _call, _params: 1) -> Registry:
    return registry_of([Bound("chat.send", Send, ("chat", "impersonate"), handler)])


def prepare(params: dict[str, object], who: Principal = LOCAL, name: str = "chat.send") -> Any:
    return registry().prepare(Request(1, name, params), who)


def test_an_unknown_method_is_told_what_was_meant() -> None:
    with pytest.raises(UnknownMethod, match='did you mean "chat.send"'):
        prepare({}, name="chat.sent")


def test_an_unknown_parameter_is_told_what_was_meant() -> None:
    with pytest.raises(InvalidParams, match='contnet: unknown parameter; did you mean "content"'):
        prepare({"content": "x", "contnet": "y"})


def test_a_wrong_budget_is_told_without_words_of_the_parser() -> None:
    wanted = registry_of([Bound("token.create", CreateToken, ("admin",), lambda _call, _params: 1)])
    asked = Request(1, "token.create", {"name": "laptop", "budget": {"daily": 5, "Bogus": 1}})

    with pytest.raises(InvalidParams) as caught:
        wanted.prepare(asked, LOCAL)

    places = [place for place, _ in caught.value.problems]
    assert places == ["budget", "budget.Bogus"]


def test_every_wrong_parameter_is_named_and_no_value_shown() -> None:
    with pytest.raises(InvalidParams) as caught:
        prepare({"limit": "hush-hush"})

    answer = rpc.encode_error(1, caught.value)
    problems = json.loads(answer)["error"]["data"]["problems"]
    assert [problem["param"] for problem in problems] == ["content", "limit"]
    assert b"hush" not in answer


@pytest.mark.parametrize("count", [30, 100_000])
def test_very_many_parameters_make_a_short_answer(count: int) -> None:
    with pytest.raises(InvalidParams) as caught:
        prepare({str(number): 1 for number in range(count)})

    assert len(rpc.encode_error(1, caught.value)) < 500


def test_a_method_wants_its_scope() -> None:
    with pytest.raises(Forbidden, match="chat or impersonate"):
        prepare({"content": "x"}, Principal("reader", frozenset({"read"})))


@pytest.mark.parametrize("scope", ["chat", "impersonate", "admin"])
def test_any_of_the_scopes_of_a_method_will_do(scope: str) -> None:
    assert prepare({"content": "x"}, Principal("someone", frozenset({scope})))


def test_a_method_without_scopes_is_for_everybody() -> None:
    free = registry_of([Bound("x", Ping, None, ping)])

    assert free.prepare(Request(1, "x", {}), Principal("nobody", frozenset()))


def test_a_plugin_is_called_by_hand_only_by_a_token_that_reaches_all_agents() -> None:
    (method,) = [one for one in METHODS if one.name == "plugin.call"]

    assert method.all_agents


def test_a_method_of_all_agents_is_not_for_a_token_that_reaches_some() -> None:
    declared = [Method("x", Ping, None, str, all_agents=True)]
    some = Principal("someone", frozenset({"admin"}), frozenset({"a"}))

    with pytest.raises(Forbidden, match="concerns all agents"):
        Registry(declared, {"x": ping}).prepare(Request(1, "x", {}), some)


def test_every_method_has_one_handler_and_every_handler_is_a_method() -> None:
    declared = [Method("x", Ping, None, str)]

    with pytest.raises(KeyError, match="x"):
        Registry(declared, {})
    with pytest.raises(ValueError, match="y"):
        Registry(declared, {"x": ping, "y": ping})


def test_every_method_says_what_it_is_for() -> None:
    assert [one.name for one in METHODS if not one.help.endswith(".")] == []


def answered(handler: Any) -> Any:
    prepared = registry(handler).prepare(Request(1, "chat.send", {"content": "x"}), LOCAL)
    return json.loads(rpc.answer_sync(prepared))


def test_a_result_is_encoded_with_utc_times_and_without_nan() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    assert answered(lambda *_: {"at": at, "n": float("nan")})["result"] == {
        "at": "2026-01-02T03:04:05Z",
        "n": None,
    }


@pytest.mark.parametrize("result", ["\ud800", object()])
def test_a_result_that_json_cannot_hold_is_an_internal_error(result: object) -> None:
    assert answered(lambda *_: result)["error"]["code"] == -32603


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (NotFound("session"), -32004, "not_found"),
        (Busy("full", 3.0), -32005, "busy"),
        (RuntimeError("hush"), -32603, "internal_error"),
        (GatewayError("hush"), -32603, "internal_error"),
    ],
)
def test_what_a_handler_raises_is_an_answer(error: Exception, expected: int, kind: str) -> None:
    def handler(_call: Call, _params: Send) -> None:
        raise error

    answer = answered(handler)

    assert answer["error"]["code"] == expected
    assert answer["error"]["data"]["type"] == kind
    assert "hush" not in json.dumps(answer)


def test_one_bad_callback_does_not_keep_the_others_from_running() -> None:
    ran: list[str] = []
    call = Call(LOCAL)

    def bad() -> None:
        raise RuntimeError("bad")

    call.after_answer += [bad, lambda: ran.append("good")]
    rpc.run_all(call.after_answer)

    assert ran == ["good"]


def test_a_notification_frame_is_json() -> None:
    frame = json.loads(rpc.NOTIFICATION % (b"chat.event", b'{"seq":1}'))

    assert frame == {"jsonrpc": "2.0", "method": "chat.event", "params": {"seq": 1}}


class _Inner(Params):
    on: bool = False


class _Outer(Params):
    inner: _Inner | None = None
    several: list[_Inner] | None = None
    name: str = ""


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"inner": 1}, "inner: must be an object"),
        ({"inner": {"on": []}}, "inner.on: must be true or false"),
        ({"several": [[]]}, "several.0: must be an object"),
        ({"several": {}}, "several: must be a list"),
        ({"name": None}, "name: must be a string"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_json(params: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidParams, match=told) as refused:
        rpc.validate(_Outer, params)

    assert "_Inner" not in str(refused.value)
