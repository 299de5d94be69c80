"""MCP servers in a whole gateway: their tools in turns, and turns without them."""

import json
import os
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from anyio.abc import SocketAttribute

from gateway.agent.output import CUT_OFF
from tests.fakes.client import Event, connected, post_chat
from tests.fakes.gateway import Setup, command, running
from tests.fakes.mcp_child import STUBBORN
from tests.fakes.mcp_server import ANYTHING, FakeMcp, serving, text_result
from tests.fakes.model_server import Asked, Reply, scripted_server

CALL = Reply(calls=[("c1", "books__echo", '{"text":"hello"}')])


def setup_of(
    model_url: str,
    line: str,
    listed: Sequence[str] = ("mcp:books",),
    *,
    more: str = "",
    timeout_s: int = 60,
) -> Setup:
    rest = f"[mcp.servers.books]\n{line}\ntimeout_s = {timeout_s}\nretry_attempts = 0\n{more}"
    return Setup(model_url, tools=tuple(listed), rest=rest)


def results(events: Sequence[Event]) -> list[Any]:
    return [one["tool_call"]["result"] for one in events if one["type"] == "tool_result"]


def notices(events: Sequence[Event]) -> list[Event]:
    return [one for one in events if one["type"] == "system"]


def offered(asked: Asked) -> list[str]:
    return [one["function"]["name"] for one in asked.body.get("tools", ())]


@pytest.mark.requirement("S-004-MCP-01", "S-004-MCP-02")
@pytest.mark.parametrize("is_legacy", [False, True])
async def test_a_tool_of_a_server_is_called_on_behalf_of_whoever_asks(
    tmp_path: Path, is_legacy: bool
) -> None:
    async with (
        scripted_server([CALL, Reply("It says hello.")]) as model,
        serving(FakeMcp(is_legacy=is_legacy)) as books,
        running(setup_of(model.url, f'url = "{books.url}"'), tmp_path) as site,
        connected(site.url) as client,
    ):
        run = await client.send("Say hello.")
        events = await client.ended(run["run_id"])
        status = await client.call("status")

    assert offered(model.requests[0]) == ["books__echo"]
    assert results(events) == ["echo hello"]
    assert events[-1]["response"] == "It says hello."
    (call,) = books.calls
    assert call.headers["x-user-id"] == call.meta["exogate/user"] == "local"
    assert call.headers["x-exogate-depth"] == "1"
    (told,) = status["mcp"]
    assert (told["name"], told["state"], told["tools"]) == ("books", "connected", 1)
    assert told["version"] == ("2025-11-25" if is_legacy else "2026-07-28")
    assert "x-user-id" not in books.requests[0]  # tools are listed on nobody's behalf


@pytest.mark.requirement("S-004-MCP-04")
async def test_a_turn_answers_without_a_dead_server_and_its_tools_come_back_without_a_restart(
    tmp_path: Path,
) -> None:
    async with scripted_server([Reply("One."), Reply("Two."), CALL, Reply("Three.")]) as model:
        fake = FakeMcp()
        async with serving(fake):
            port = int(fake.url.split(":")[2].split("/")[0])
        setup = setup_of(model.url, f'url = "{fake.url}"')
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            await client.call("events.subscribe", types=["mcp.connected"])
            run = await client.send("Anybody?")
            without = await client.ended(run["run_id"])
            async with serving(fake, port):
                again = await client.send("And now?")
                await client.ended(again["run_id"])
                await client.until_told(lambda told: told)
                run = await client.send("Say hello.")
                with_it = await client.ended(run["run_id"])

    (notice,) = notices(without)
    assert without[-1]["response"] == "One."
    assert notice["metadata"]["error_type"] == "mcp_connection_error"
    assert notice["metadata"]["server"] == "books"
    assert "'books' are not available" in notice["system_message"]
    assert offered(model.requests[0]) == []
    assert "'books' are not available" in json.dumps(model.requests[0].body)
    assert (results(with_it), with_it[-1]["response"]) == (["echo hello"], "Three.")
    assert notices(with_it) == []


async def test_a_run_that_is_stopped_waits_for_no_server(tmp_path: Path) -> None:
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as silent,
        scripted_server([Reply("One.")]) as model,
    ):
        port = silent.extra(SocketAttribute.local_port)
        setup = setup_of(model.url, f'url = "http://127.0.0.1:{port}/mcp"', timeout_s=600)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            run = await client.send("Anybody?")
            await client.call("chat.abort", run_id=run["run_id"])
            events = await client.ended(run["run_id"])

    assert events[-1]["reason"] == "cancelled"
    assert model.requests == []


@pytest.mark.requirement("S-004-MCP-04")
async def test_a_run_without_its_server_is_replayed_as_it_was(tmp_path: Path) -> None:
    async with scripted_server([Reply("One.")]) as model:
        setup = setup_of(model.url, 'command = "/there/is/none"')
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            run = await client.send("Anybody?")
            await client.ended(run["run_id"])
            told = await client.call("run.replay", run_id=run["run_id"])

    assert told["identical"] is True


@pytest.mark.requirement("S-004-MCP-05")
async def test_a_run_that_called_a_foreign_tool_is_replayed_without_calling_it(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server([CALL, Reply("It says hello.")]) as model,
        serving(FakeMcp()) as books,
        running(setup_of(model.url, f'url = "{books.url}"'), tmp_path) as site,
        connected(site.url) as client,
    ):
        run = await client.send("Say hello.")
        await client.ended(run["run_id"])
        told = await client.call("run.replay", run_id=run["run_id"])

    assert told["identical"] is True
    assert len(books.calls) == 1


async def test_nothing_of_a_program_outlives_a_gateway_that_is_killed(tmp_path: Path) -> None:
    line = f"command = {json.dumps(sys.executable)}\nargs = ['-c', {json.dumps(STUBBORN)}]"
    calls = [Reply(calls=[("c1", f"books__{tool}", "{}")]) for tool in ("pid", "fork")]
    async with scripted_server([*calls, Reply("Done.")]) as model:
        setup = setup_of(model.url, f"{line}\nenv = {{}}")
        async with command(await setup.written(tmp_path)) as gateway:
            answer = (await post_chat(gateway.url, "Fork.")).json
            pids = [int(made["result"]) for made in answer["tool_calls_made"]]
            watched = [os.pidfd_open(pid) for pid in pids]
            gateway.kill()
        for one in watched:
            with anyio.fail_after(60):
                await anyio.wait_readable(one)
            os.close(one)

    assert len(pids) == 2


@pytest.mark.requirement("S-004-MCP-02")
@pytest.mark.parametrize("is_legacy", [False, True])
async def test_of_twenty_who_ask_at_once_nobody_is_taken_for_another(
    tmp_path: Path, is_legacy: bool
) -> None:
    people = [f"person-{number}" for number in range(20)]

    def script(asked: Asked) -> Reply:
        if asked.body["messages"][-1]["role"] == "tool":
            return Reply(asked.last_text)
        return Reply(calls=[("c1", "books__echo", json.dumps({"text": asked.last_text}))])

    tokens = "".join(f'[[tokens]]\nname = "{name}"\ntoken = "token-of-{name}"\n' for name in people)
    async with (
        scripted_server(script) as model,
        serving(FakeMcp(is_legacy=is_legacy)) as books,
        running(setup_of(model.url, f'url = "{books.url}"', more=tokens), tmp_path) as site,
    ):
        said: list[tuple[str, str]] = []

        async def ask(name: str) -> None:
            for _ in range(3):
                answer = await post_chat(site.url, name, token=f"token-of-{name}")
                said.append((name, answer.json["response"]))

        async with anyio.create_task_group() as group:
            for name in people:
                group.start_soon(ask, name)

    assert sorted(said) == sorted((name, f"echo {name}") for name in people for _ in range(3))
    assert len(books.calls) == 60
    for call in books.calls:
        assert call.headers["x-user-id"] == call.meta["exogate/user"] == call.arguments["text"]
    sessions = {
        (call.headers.get("mcp-session-id"), call.arguments["text"]) for call in books.calls
    }
    assert len(sessions) == 20
    assert len({session for session, _ in sessions}) == (20 if is_legacy else 1)


@pytest.mark.parametrize("may_repeat", [False, True])
async def test_kill_9_in_a_call_repeats_only_one_that_may_be_repeated(
    tmp_path: Path, *, may_repeat: bool
) -> None:
    async def stall(arguments: Mapping[str, Any]) -> types.CallToolResult:
        if len(books.calls) == 1:
            await anyio.sleep_forever()
        return text_result("paid")

    annotations = types.ToolAnnotations(idempotent_hint=may_repeat)
    pay = types.Tool(name="echo", input_schema=ANYTHING, annotations=annotations)
    async with (
        scripted_server([CALL, Reply("Done.")]) as model,
        serving(FakeMcp([pay], {"echo": stall})) as books,
    ):
        config = await setup_of(model.url, f'url = "{books.url}"').written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            run = await client.send("Pay.")
            with anyio.fail_after(60):
                await books.came.wait()
            site.kill()
            await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            await client.call("chat.resume", run_id=run["run_id"], after_seq=0)
            events = await client.ended(run["run_id"])
            replay = await client.call("run.replay", run_id=run["run_id"])

    (told,) = results(events)
    assert events[-1]["response"] == "Done."
    assert replay["divergence"] is None
    assert len(books.calls) == (2 if may_repeat else 1)
    assert told == ("paid" if may_repeat else CUT_OFF)


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_server_that_repeats_its_key_in_any_encoding_tells_it_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_error: bool
) -> None:
    key = 'k3y/of+the"books'
    encoded = {
        "json": "".join(f"\\u{ord(char):04X}" for char in key),
        "some of it": key.replace("k", "\\u006b").replace("/", "\\/").replace('"', '\\"'),
        "percent": "".join(f"%{ord(char):02x}" for char in key),
        "decimal": "".join(f"&#{ord(char):05d};" for char in key),
        "hexadecimal": "".join(f"&#x{ord(char):X}" for char in key),
        "hex": key.encode().hex().upper(),
        "base64": b64encode(f"xx{key}".encode()).decode(),
    }

    async def repeat(arguments: Mapping[str, Any]) -> types.CallToolResult:
        return text_result(f"You sent <{'> <'.join(encoded.values())}>.", is_error=is_error)

    said = f"Sends {encoded['decimal']}."
    tool = types.Tool(name="echo", description=said, input_schema=ANYTHING)
    line = f"headers = {{ X-Api-Key = '{key}' }}"
    async with (
        scripted_server([CALL, Reply("Done.")]) as model,
        serving(FakeMcp([tool], {"echo": repeat})) as books,
        running(setup_of(model.url, f'url = "{books.url}"\n{line}'), tmp_path) as site,
        connected(site.url) as client,
    ):
        run = await client.send("Say hello.")
        events = await client.ended(run["run_id"])

    assert books.requests[-1]["x-api-key"] == key
    heard = json.dumps([[one.body for one in model.requests], events])
    heard += "".join(str(record.__dict__) for record in caplog.records)
    assert "You sent <***> <***>" in heard
    for form in encoded.values():
        assert form not in heard
        assert json.dumps(form)[1:-1] not in heard
