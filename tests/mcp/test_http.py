"""What the wire tells of a call: who has to bear it, and whether it may be sent again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from starlette.types import Send

from gateway.domain.messages import ToolResult
from tests.fakes.mcp_server import ANYTHING, FakeMcp, Instead, answer, refusal, serving, text_result
from tests.mcp.stage import Stage, staged
from tests.mcp.test_connections import ERAS, READS, at

BYSTANDER = "bystander"


def instead(called: list[str], status: int, body: bytes) -> Instead:
    """Answers each call of the tool `odd` so."""

    async def act(request: bytes, send: Send) -> bool:
        asked = json.loads(request or b"{}")
        if asked.get("method") != "tools/call" or asked["params"]["name"] != "odd":
            return False
        called.append("odd")
        said = {**json.loads(body), "id": asked["id"]} if body else None
        await answer(send, status, json.dumps(said).encode() if said else b"")
        return True

    return act


async def beside_another(fake: FakeMcp, stage: Stage, tool: str) -> tuple[ToolResult, ToolResult]:
    """What the tool gave, and what a call that was at work meanwhile gave another person."""
    gate, results = anyio.Event(), list[ToolResult]()

    async def wait(arguments: Mapping[str, Any]) -> types.CallToolResult:
        await gate.wait()
        return text_result("undisturbed")

    async def other() -> None:
        results.append(await stage.call(BYSTANDER, person="bob"))

    fake.acts[BYSTANDER] = wait
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(other)
            await fake.came.wait()
            odd = await stage.call(tool)
            gate.set()
    return odd, results[0]


def offering(annotations: types.ToolAnnotations | None = None, **more: Any) -> FakeMcp:
    tools = [
        types.Tool(name="odd", input_schema=ANYTHING, annotations=annotations),
        types.Tool(name=BYSTANDER, input_schema=ANYTHING),
    ]
    return FakeMcp(tools=tools, **more)


@ERAS
async def test_the_code_that_many_servers_have_for_an_error_is_the_servers_word(
    tmp_path: Path, is_legacy: bool
) -> None:
    called: list[str] = []
    fake = offering(READS, is_legacy=is_legacy)
    fake.instead = instead(called, 200, refusal(-32000, "out of paper"))
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        odd, bystander = await beside_another(fake, stage, "odd")

    assert (odd.content, odd.is_error) == ("books__odd: out of paper", True)
    assert bystander.content == "undisturbed"
    assert called == ["odd"]
    assert stage.told[-1][0] == "mcp.connected"


async def test_a_call_that_is_cut_off_harms_no_other(tmp_path: Path) -> None:
    fake, called = offering(), list[str]()

    async def cut(request: bytes, send: Send) -> bool:
        if b'"odd"' not in request:
            return False
        called.append("odd")
        headers = [(b"content-type", b"application/json"), (b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise ConnectionAbortedError

    fake.instead = cut
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        odd, bystander = await beside_another(fake, stage, "odd")

    assert "may have been executed" in odd.content
    assert bystander.content == "undisturbed"
    assert called == ["odd"]


def giving(result: Mapping[str, Any], called: list[str], *, as_event: bool) -> Instead:
    """Answers each call of the tool `odd` with this."""

    async def act(request: bytes, send: Send) -> bool:
        if b'"odd"' not in request:
            return False
        called.append("odd")
        said = {"jsonrpc": "2.0", "id": json.loads(request)["id"], "result": result}
        body = json.dumps(said, separators=(",", ":")).encode()
        if as_event:
            await answer(send, 200, b"data: " + body + b"\n\n", EVENT_STREAM)
        else:
            await answer(send, 200, body)
        return True

    return act


EVENT_STREAM = ("content-type", "text/event-stream")
AS_EVENT = pytest.mark.parametrize("as_event", [False, True], ids=["json", "event"])


@AS_EVENT
@ERAS
async def test_an_answer_that_is_too_large_harms_no_other(
    tmp_path: Path, is_legacy: bool, as_event: bool
) -> None:
    fake, called = offering(READS, is_legacy=is_legacy), list[str]()
    many = {"content": [], "structuredContent": {"a": [[]] * 200_000}}
    fake.instead = giving(many, called, as_event=as_event)
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        odd, bystander = await beside_another(fake, stage, "odd")

    assert odd.is_error
    assert odd.content == "books__odd: the answer has more than 50000 values"
    assert bystander.content == "undisturbed"
    assert called == ["odd"]


@AS_EVENT
async def test_an_answer_of_some_megabytes_comes_whole(tmp_path: Path, as_event: bool) -> None:
    fake = offering(is_legacy=True)
    picture = {"type": "image", "data": "AAAA" * 1_000_000, "mimeType": "image/png"}
    fake.instead = giving({"content": [picture]}, [], as_event=as_event)
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        result = await stage.call("odd")

    assert result.content == "[image/png, 3000000 bytes: not shown]"


@pytest.mark.requirement("S-004-MCP-03")
@pytest.mark.parametrize(
    ("status", "body", "times"),
    [
        (404, b"", 2),
        (404, refusal(-32600, "Session not found"), 2),
        (400, refusal(-32000, "Bad Request: No valid session ID provided"), 1),
    ],
)
async def test_a_session_that_is_gone_is_opened_anew(
    tmp_path: Path, status: int, body: bytes, times: int
) -> None:
    """Sent again only after the status that means that the session is not known."""
    called: list[str] = []
    fake = offering(is_legacy=True)
    fake.instead = instead(called, status, body)
    async with serving(fake), staged(at(fake, retry_attempts=1), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        odd = await stage.call("odd")
        fake.instead = None
        after = await stage.call("odd")

    assert odd.is_error
    assert len(called) == times
    assert after.content == "echo "


@pytest.mark.requirement("S-004-MCP-03")
async def test_a_server_that_has_nothing_to_listen_to_has_not_forgotten_the_session(
    tmp_path: Path,
) -> None:
    fake = offering(is_legacy=True, get_status=404)

    async def fails(arguments: Mapping[str, Any]) -> types.CallToolResult:
        raise MCPError(code=-32603, message="in the middle of it")

    fake.acts["odd"] = fails
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        await stage.call(BYSTANDER)
        await stage.until(lambda: len(fake.gets) == 2)
        odd = await stage.call("odd")

    assert odd.content == "books__odd: in the middle of it"
    assert [call.tool for call in fake.calls] == [BYSTANDER, "odd"]


async def test_a_server_that_leaves_a_notice_unanswered_holds_up_no_later_call(
    tmp_path: Path,
) -> None:
    fake = offering(is_legacy=True)

    async def hang(request: bytes, send: Send) -> bool:
        if b"notifications/cancelled" in request:
            await anyio.sleep_forever()
        return False

    async def never(arguments: Mapping[str, Any]) -> types.CallToolResult:
        await anyio.sleep_forever()
        raise AssertionError

    fake.instead, fake.acts["odd"] = hang, never
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        stage.limit(0.2)
        late = await stage.call("odd")
        stage.limit(5)
        after = await stage.call(BYSTANDER)

    assert "did not answer within" in late.content
    assert after.content == "echo "


async def test_connections_whose_calls_were_given_up_are_not_kept_for_ever(tmp_path: Path) -> None:
    fake = offering(is_legacy=True)

    async def never(arguments: Mapping[str, Any]) -> types.CallToolResult:
        await anyio.sleep_forever()
        raise AssertionError

    fake.acts["odd"] = never
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        stage.limit(0.05)
        for _ in range(12):
            await stage.call("odd")
        stage.limit(3)
        await stage.call(BYSTANDER)

    sessions = [call.headers["mcp-session-id"] for call in fake.calls]
    assert len(set(sessions)) == 2
    assert sessions[-1] != sessions[0]
