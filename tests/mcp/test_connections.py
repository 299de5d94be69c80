"""Servers over HTTP, both eras: whose call it is, what breaks, and what is sent twice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef
from gateway.domain.messages import ToolResult
from tests.fakes.mcp_server import ANYTHING, FakeMcp, echo, serving, text_result
from tests.fakes.tools import FakeTool
from tests.mcp.stage import staged

ERAS = pytest.mark.parametrize("is_legacy", [False, True], ids=["2026-07-28", "2025-11-25"])
READS = types.ToolAnnotations(read_only_hint=True)


def at(fake: FakeMcp, **more: Any) -> McpServerDef:
    given = {"timeout_s": 60.0, "retry_attempts": 2, **more}
    return McpServerDef("books", url=fake.url, **given)


@ERAS
@pytest.mark.requirement("S-004-MCP-02")
async def test_twenty_people_at_once_are_never_mixed_up(tmp_path: Path, is_legacy: bool) -> None:
    fake = FakeMcp(is_legacy=is_legacy)
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        async with anyio.create_task_group() as group:
            for number in range(60):
                person = f"person-{number % 20}"
                given = json.dumps({"text": person, "user": "somebody-else"})
                group.start_soon(stage.call, "echo", given, person)

    assert len(fake.calls) == 60
    for call in fake.calls:
        assert call.headers["x-user-id"] == call.meta["exogate/user"] == call.arguments["text"]


@ERAS
async def test_a_session_is_one_persons_where_a_server_keeps_sessions(
    tmp_path: Path, is_legacy: bool
) -> None:
    fake = FakeMcp(is_legacy=is_legacy)
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        for person in ("ann", "bob", "ann"):
            await stage.call("echo", person=person)

    sessions = [call.headers.get("mcp-session-id") for call in fake.calls]
    assert len(set(sessions)) == (2 if is_legacy else 1)
    assert sessions[0] == sessions[2]
    assert (sessions[0] is not None) == is_legacy


@pytest.mark.requirement("S-004-MCP-02")
async def test_a_name_beyond_ascii_is_percent_encoded_and_headers_go_along(tmp_path: Path) -> None:
    fake = FakeMcp()
    async with serving(fake):
        headers = {"Authorization": Secret("Bearer s3cret")}
        server = at(fake, headers=headers, user_header="X-Person")
        async with staged(server, tmp_path) as stage:
            await stage.gate.prepare(stage.agent)
            await stage.call("echo", person="telegram:Ä b\n%")

    (call,) = fake.calls
    assert call.headers["x-person"] == "telegram:%C3%84%20b%0A%25"
    assert call.headers["authorization"] == "Bearer s3cret"
    assert "x-user-id" not in call.headers
    assert call.meta["exogate/user"] == "telegram:Ä b\n%"


@ERAS
@pytest.mark.requirement("S-004-MCP-03")
@pytest.mark.parametrize("reads", [True, False])
async def test_only_a_call_that_may_be_repeated_is_sent_again_when_the_connection_breaks(
    tmp_path: Path, is_legacy: bool, reads: bool
) -> None:
    fake = FakeMcp(
        tools=[
            types.Tool(name="slow", input_schema=ANYTHING, annotations=READS if reads else None)
        ],
        is_legacy=is_legacy,
    )

    async def never(arguments: Mapping[str, Any]) -> types.CallToolResult:
        await anyio.sleep_forever()
        raise AssertionError

    fake.acts["slow"] = never
    results: list[ToolResult] = []
    async with serving(fake), staged(at(fake, retry_attempts=5), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)

        async def call() -> None:
            results.append(await stage.call("slow"))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await fake.came.wait()
                fake.acts["slow"] = echo
                await fake.restart()

    (result,) = results
    assert len(fake.calls) == (2 if reads else 1)
    assert result.is_error is not reads
    assert ("may have been executed" in result.content) is not reads


@ERAS
async def test_a_server_that_forgot_its_session_is_asked_again(
    tmp_path: Path, is_legacy: bool
) -> None:
    fake = FakeMcp(is_legacy=is_legacy)
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        await stage.call("echo")
        await fake.restart()
        await stage.gate.prepare(stage.agent)
        result = await stage.call("echo", '{"text":"again"}')

    assert result.content == "echo again"


@pytest.mark.requirement("S-004-MCP-03")
async def test_a_late_call_is_told_as_perhaps_carried_out(tmp_path: Path) -> None:
    fake = FakeMcp()

    async def never(arguments: Mapping[str, Any]) -> types.CallToolResult:
        await anyio.sleep_forever()
        raise AssertionError

    fake.acts["echo"] = never
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        stage.limit(0.2)
        result = await stage.call("echo")
        fake.acts["echo"] = echo
        after = await stage.call("echo")

    assert result.is_error
    assert result.content == (
        "books__echo did not answer within 0.2 s. It may have been carried out all the same: "
        "look before you call it again."
    )
    assert not after.is_error


async def test_a_redirect_to_another_server_is_not_followed(tmp_path: Path) -> None:
    other, fake = FakeMcp(), FakeMcp()
    async with serving(other), serving(fake):
        fake.redirect_to = other.url
        async with staged(at(fake, retry_attempts=0), tmp_path) as stage:
            (lacking,) = await stage.gate.prepare(stage.agent)

    assert other.requests == []
    assert "'books' are not available" in lacking.why


async def test_a_name_of_ours_stays_ours(tmp_path: Path) -> None:
    fake = FakeMcp(
        tools=[types.Tool(name=name, input_schema=ANYTHING) for name in ("a.b", "a_b", "x")]
    )
    own = FakeTool("books__x")
    async with serving(fake), staged(at(fake), tmp_path, own=[own]) as stage:
        await stage.gate.prepare(stage.agent)
        refused = [one.name for one in stage.gate.refused]
        await stage.call("x")

    assert stage.names() == ["books__x", "books__a_b"]
    assert refused == ["books__x"]
    assert len(own.calls) == 1


async def test_one_tool_of_a_server_can_be_listed_alone(tmp_path: Path) -> None:
    tools = [types.Tool(name=name, input_schema=ANYTHING) for name in ("one", "two")]
    fake = FakeMcp(tools=tools)
    async with serving(fake), staged(at(fake), tmp_path, listed=["mcp:books/two"]) as stage:
        await stage.gate.prepare(stage.agent)
        names = stage.names()
        result = await stage.call("one")

    assert names == ["books__two"]
    assert result.content.startswith("There is no tool")


async def test_a_result_that_breaks_its_own_promise_is_an_error(tmp_path: Path) -> None:
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    fake = FakeMcp(tools=[types.Tool(name="count", input_schema=ANYTHING, output_schema=shape)])
    given = iter([{"n": "many"}, {"n": 3}])

    async def count(arguments: Mapping[str, Any]) -> types.CallToolResult:
        return types.CallToolResult(content=[], structured_content=next(given))

    fake.acts["count"] = count
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        wrong, right = await stage.call("count"), await stage.call("count")

    assert wrong.is_error
    assert "does not match its output schema" in wrong.content
    assert (right.content, right.is_error) == ('{"n": 3}', False)


async def test_an_error_of_a_tool_is_told_as_one(tmp_path: Path) -> None:
    fake = FakeMcp()

    async def fails(arguments: Mapping[str, Any]) -> types.CallToolResult:
        return text_result("No such book.", is_error=True)

    fake.acts["echo"] = fails
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        result = await stage.call("echo")

    assert (result.content, result.is_error) == ("No such book.", True)
    assert dict(stage.server.outcomes) == {"error": 1}
