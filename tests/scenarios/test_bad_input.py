"""Whatever comes in: a clear answer, a gateway that lives on, and not one token spent."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.fakes.client import WAIT_S, Client, connected, http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.forms import each
from tests.scenarios.scripts import echo, shown, talking

BAD_FRAMES: dict[str, tuple[str, int]] = {
    "nothing": ("", -32700),
    "half a brace": ("{", -32700),
    "two at once": ('{"jsonrpc":"2.0","id":1,"method":"ping"} {}', -32700),
    "a number": ("17", -32600),
    "an empty batch": ("[]", -32600),
    "a huge batch": (json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 200), -32600),
    "another version": ('{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    "no method": ('{"jsonrpc":"2.0","id":1}', -32600),
    "a method that is none": ('{"jsonrpc":"2.0","id":1,"method":"chat.sned"}', -32601),
    "params in a row": ('{"jsonrpc":"2.0","id":1,"method":"chat.send","params":["x"]}', -32602),
    "too deep": ("[" * 100_000 + "]" * 100_000, -32700),
    "half a surrogate pair": (r'{"jsonrpc":"2.0","id":1,"method":"\ud800"}', -32700),
    "not a number": ('{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700),
    "a huge id": (json.dumps({"jsonrpc": "2.0", "id": "x" * 1000, "method": "ping"}), -32600),
}


async def test_a_frame_that_is_no_request_is_answered_and_the_socket_goes_on(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url), tmp_path) as site,
        connect(site.url.replace("http", "ws") + "/ws") as socket,
    ):
        for frame, code in map(BAD_FRAMES.__getitem__, each(BAD_FRAMES)):
            with anyio.fail_after(WAIT_S):
                await socket.send(frame)
                answer = json.loads(await socket.recv())
                await socket.send('{"jsonrpc":"2.0","id":2,"method":"ping"}')
                after = json.loads(await socket.recv())

            assert answer["error"]["code"] == code
            assert answer["error"]["message"]
            assert after["result"] == "pong"
            assert not model.requests


BAD_PARAMS: dict[str, dict[str, Any]] = {
    "no content": {},
    "empty content": {"content": ""},
    "blank content": {"content": " \n\t"},
    "a number as content": {"content": 5},
    "no content at all": {"content": None},
    "an endless content": {"content": "x" * 400_001},
    "an unknown parameter": {"content": "x", "chanel": "slack"},
    "an empty peer": {"content": "x", "peer": ""},
    "an endless peer": {"content": "x", "peer": "p" * 257},
    "an endless key": {"content": "x", "idempotency_key": "k" * 257},
    "a list as peer": {"content": "x", "peer": ["a"]},
    "a budget below one": {"content": "x", "limits": {"token_budget": 0}},
    "attachments that we cannot take": {"content": "x", "attachments": [{"url": "file:///x"}]},
}


@pytest.mark.requirement("S-004-Valid-01")
async def test_bad_parameters_are_named_and_reach_no_model(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        for what in each(BAD_PARAMS):
            error = await client.refused("chat.send", **BAD_PARAMS[what])
            status = await client.call("status")

            assert (error.code, error.data["type"]) == (-32602, "invalid_params")
            assert error.data["message"]
            assert status["sessions"] == status["pending"] == 0
            assert not model.requests


STRANGE = {
    "colons": "a:b::c",
    "percent": "100%3A",
    "NUL": "a\x00b",
    "control": "a\x01\x1b[31m\x7f\x85b",
    "newline": "a\r\nb",
    "right to left": "\u202etxt.exe\u2066",
    "astral": "\U0001f600\U0010ffff",
    "joined": "e\u0301\u200d\ufeff",
    "SQL": "'; DROP TABLE run; --",
    "path": "../../etc/passwd",
}


@pytest.mark.requirement("S-003-Session-02")
async def test_strange_ids_and_texts_come_back_exactly_as_they_were(tmp_path: Path) -> None:
    keys: set[str] = set()
    async with talking(echo, tmp_path) as (model, _site, client):
        for text in each(STRANGE.values()):
            address = {"channel": text, "account": text, "peer": text}
            sent = await client.send(text, **address, idempotency_key=text)
            end = (await client.ended(sent["run_id"]))[-1]
            again = await client.send(text, **address, idempotency_key=text)
            session = await client.call("session.get", session_key=sent["session_key"])
            page = await client.call("chat.history", session_key=sent["session_key"])
            listed = (await client.call("session.list"))["sessions"]
            keys.add(sent["session_key"])

            assert end["response"] == f"answer to {text}"
            assert (again["duplicate"], again["run_id"]) == (True, sent["run_id"])
            assert (session["channel"], session["account"], session["peer"]) == (text, text, text)
            assert shown(page) == [("user", text), ("assistant", f"answer to {text}")]
            assert sorted(one["session_key"] for one in listed) == sorted(keys)
            assert len(model.requests) == len(keys)


async def test_half_a_surrogate_pair_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url), tmp_path) as site,
        connect(site.url.replace("http", "ws") + "/ws") as socket,
    ):
        for name in each(("content", "peer", "channel", "idempotency_key")):
            params = json.dumps({"content": "x", name: "a\ud800b"})
            frame = f'{{"jsonrpc":"2.0","id":1,"method":"chat.send","params":{params}}}'
            with anyio.fail_after(WAIT_S):
                await socket.send(frame)
                answer = json.loads(await socket.recv())

            assert answer["error"]["code"] in {-32700, -32602}
            assert not model.requests


NO_KEYS = ("a:b", "a:b:c:d:e", "", "a:%zz:c:d", "a:%ff:c:d", "a:%41:c:d")


async def test_what_is_no_session_key_is_said_to_be_none(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (_model, _site, client):
        for method, key in each(product(("chat.history", "session.get", "session.tree"), NO_KEYS)):
            error = await client.refused(method, session_key=key)

            assert error.code == -32602


async def ended_by(url: str, data: bytes) -> int | None:
    """The code that a socket is closed with for that."""
    async with connect(url.replace("http", "ws") + "/ws") as socket:
        with anyio.fail_after(WAIT_S):
            await socket.send(data, text=True)
            with pytest.raises(ConnectionClosed):
                await socket.recv()
    return socket.close_code


NO_TEXTS = {b"\xff\xfe": 1007, b"x" * 2_000_000: 4409, b'"\xed\xa0\x80"': 1007}


async def test_a_frame_that_cannot_be_taken_ends_its_socket_and_no_other(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as other,
    ):
        for data, code in each(NO_TEXTS.items()):
            assert await ended_by(site.url, data) in {code, 1009 if code == 4409 else code}
            assert await other.call("ping") == "pong"
            assert not model.requests


ELSEWHERE = ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"})


async def test_a_page_from_elsewhere_is_turned_away(tmp_path: Path) -> None:
    async with scripted_server(echo) as model, running(Setup(model.url), tmp_path) as site:
        for headers in each(ELSEWHERE):
            answer = await http(
                f"{site.url}/api/chat",
                method="POST",
                headers={"Content-Type": "application/json", **headers},
                body=b'{"message":"hi"}',
            )

            assert answer.status == 403
            assert not model.requests


MODEL_TEXTS = {
    "half a surrogate pair": rb'"half \ud800 pair"',
    "NUL and control": rb'"a\u0000\u0007\u001b[31mb"',
    "right to left": rb'"\u202eevil"',
    "very long": b'"' + b"long " * 100_000 + b'"',
}


@pytest.mark.requirement("S-004-Flow-03")
async def test_whatever_a_model_says_the_run_comes_to_one_end_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":%b},"finish_reason":null}]}\n\n'
    last = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    def script(asked: Asked) -> Reply:
        text = MODEL_TEXTS.get(asked.last_text)
        return Reply(raw=[event % text, last]) if text else echo(asked)

    async with scripted_server(script) as model:
        setup = Setup(model.url, provider="max_retries = 0")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            for what in each(MODEL_TEXTS):
                sent = await client.send(what, peer=what)
                end = (await client.ended(sent["run_id"]))[-1]
                after = await client.ask("still there?", peer=what)
                history = await all_of(client, sent["session_key"])

                assert end["type"] in {"done", "error"}
                assert after["response"] == "answer to still there?"
                assert [one["role"] for one in history] == ["user", "assistant"] * 2


async def all_of(client: Client, session_key: str) -> list[dict[str, Any]]:
    """A history page by page: a page with a very long text ends early."""
    messages: list[dict[str, Any]] = []
    more: dict[str, str] = {}
    while True:
        page = await client.call("chat.history", session_key=session_key, **more)
        messages = [*page["messages"], *messages]
        if not page["more"]:
            return messages
        more = {"before": messages[0]["id"]}


CALLS = {
    "arguments that are no JSON": ("c", "time", "{"),
    "arguments with half a pair": ("c", "time", r'{"utc_offset_hours":"\ud800"}'),
    "arguments out of range": ("c", "time", '{"utc_offset_hours":99}'),
    "a tool that is none": ("c", "rm -rf /", "{}"),
    "a name with half a pair": ("c", "ti\ud800me", "{}"),
    "no id": ("", "time", "{}"),
    "a deep argument": ("c", "time", "[" * 5_000 + "]" * 5_000),
}


async def test_whatever_a_model_calls_the_run_comes_to_one_end(tmp_path: Path) -> None:
    left = dict(CALLS)

    def script(asked: Asked) -> Reply:
        call = left.pop(asked.last_text, None)
        return Reply("", calls=[call]) if call else Reply("well")

    async with scripted_server(script) as model:
        setup = Setup(model.url, provider="max_retries = 0", tools=("time",))
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            for what in each(CALLS):
                sent = await client.send(what, peer=what)
                end = (await client.ended(sent["run_id"]))[-1]
                after = await client.ask("still there?", peer=what)

                assert end["type"] in {"done", "error"}
                assert after["response"] == "well"

    assert not left
