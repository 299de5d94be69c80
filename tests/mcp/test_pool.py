"""The connections of a server: as many as may be."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types

from gateway.mcp.servers import MOST_CONNECTIONS
from tests.fakes.mcp_server import FakeMcp, echo, serving
from tests.mcp.stage import staged
from tests.mcp.test_connections import at


async def test_whoever_comes_when_all_sessions_are_at_work_waits_for_one(tmp_path: Path) -> None:
    people, fake = MOST_CONNECTIONS + 6, FakeMcp(is_legacy=True)
    at_work, most, gate = 0, 0, anyio.Event()

    async def wait(arguments: Mapping[str, Any]) -> types.CallToolResult:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        if at_work == MOST_CONNECTIONS:
            gate.set()
        await gate.wait()
        at_work -= 1
        return await echo(arguments)

    fake.acts["echo"] = wait
    said: dict[str, str] = {}
    async with serving(fake), staged(at(fake, timeout_s=120.0), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)

        async def call(person: str) -> None:
            said[person] = (await stage.call("echo", json.dumps({"text": person}), person)).content

        async with anyio.create_task_group() as group:
            for number in range(people):
                group.start_soon(call, f"person-{number}")

    assert said == {f"person-{number}": f"echo person-{number}" for number in range(people)}
    assert most == MOST_CONNECTIONS
    assert [name for name, _ in stage.told] == ["mcp.connected"]
