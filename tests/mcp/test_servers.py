"""One server under watch: what it is told, what it may repeat, and what cannot end the gateway."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from anyio.abc import SocketAttribute
from starlette.types import Send

from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import Secret
from gateway.domain.ports import PluginSpace
from tests.fakes.mcp_server import ANYTHING, FakeMcp, answer, refusal, serving, text_result
from tests.fakes.ports import PartOfToolStore
from tests.fakes.store import open_memory
from tests.mcp.stage import staged
from tests.mcp.test_connections import at

TOKEN = Secret("Bearer s3cret-0f-b00ks")


async def test_what_a_server_repeats_of_its_secrets_reaches_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake, said = FakeMcp(), "I was sent s3cret-0f-b00ks."
    results = iter(
        [
            text_result(said),
            text_result(said, is_error=True),
            types.CallToolResult(content=[], structured_content={"a": said}),
        ]
    )

    async def repeat(arguments: Mapping[str, Any]) -> types.CallToolResult:
        return next(results)

    async def refuse(request: bytes, send: Send) -> bool:
        await answer(send, 400, refusal(-32603, said))
        return True

    fake.acts["echo"] = repeat
    async with serving(fake):
        server = at(fake, headers={"Authorization": TOKEN}, hidden=(TOKEN,), retry_attempts=0)
        async with staged(server, tmp_path) as stage:
            await stage.gate.prepare(stage.agent)
            told = [(await stage.call("echo")).content for _ in range(3)]
            fake.instead = refuse
            told.append((await stage.call("echo")).content)
        async with staged(server, tmp_path) as again:
            (lacking,) = await again.gate.prepare(again.agent)
            status = again.server.status

    assert all("I was sent ***." in one for one in [*told, str(status.why)])
    assert lacking.why == "The tools of 'books' are not available: it is unreachable."
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "s3cret-0f" not in logged + "".join([*told, lacking.why, str(status)])


async def test_a_store_that_fails_takes_a_server_away_and_nothing_else(tmp_path: Path) -> None:
    async with open_memory() as stores:

        class Failing(PartOfToolStore):
            is_down = True

            async def get(self, space: PluginSpace, key: str) -> str | None:
                if self.is_down:
                    raise StoreUnavailable("the disk is full")
                return await stores.tools.get(space, key)

            set, delete, list = stores.tools.set, stores.tools.delete, stores.tools.list

        fake, store = FakeMcp(), Failing()
        async with serving(fake):
            server = at(fake, retry_attempts=0)
            async with staged(server, tmp_path, store=store) as stage:
                (lacking,) = await stage.gate.prepare(stage.agent)
                why = str(stage.server.status.why)
                store.is_down = False
                await stage.until_told("mcp.connected")
                names = stage.names()

    assert lacking.server == "books"
    assert "the pins of its tools cannot be read" in why
    assert names == ["books__echo"]


async def test_of_two_tools_whose_names_become_the_same_the_first_is_taken(tmp_path: Path) -> None:
    fake = FakeMcp(tools=[types.Tool(name=name, input_schema=ANYTHING) for name in ("a.b", "a b")])
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        await stage.call("a_b")

    assert [call.tool for call in fake.calls] == ["a.b"]


async def test_schemas_beyond_half_a_megabyte_are_not_read(tmp_path: Path) -> None:
    schema = {"type": "object", "description": "x" * 50_000}
    names = [f"t{number}" for number in range(12)]
    fake = FakeMcp(tools=[types.Tool(name=name, input_schema=schema) for name in names])
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        offered = stage.names()

    assert offered == [f"books__{name}" for name in names[:10]]


@pytest.mark.requirement("S-004-MCP-03")
async def test_a_call_that_never_left_is_sent_when_its_server_is_back(tmp_path: Path) -> None:
    fake = FakeMcp()
    async with serving(fake), staged(at(fake), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        port = int(fake.url.split(":")[2].split("/")[0])
        await fake.stop()
        stage.limit(0.1)
        away = await stage.call("echo")
        async with serving(fake, port):
            stage.limit(5)
            await stage.gate.prepare(stage.agent)
            back = await stage.call("echo", '{"text":"again"}')

    assert away.is_error
    assert back.content == "echo again"
    assert len(fake.calls) == 1


async def test_a_server_is_not_waited_for_longer_than_a_run_may_take(tmp_path: Path) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent:
        fake = FakeMcp()
        fake.url = f"http://127.0.0.1:{silent.extra(SocketAttribute.local_port)}/mcp"
        async with staged(at(fake, timeout_s=600.0), tmp_path) as stage:
            limits = replace(stage.agent.limits, timeout_seconds=1)
            with anyio.fail_after(60):
                (lacking,) = await stage.gate.prepare(replace(stage.agent, limits=limits))

    assert "within 1 s" in lacking.why
