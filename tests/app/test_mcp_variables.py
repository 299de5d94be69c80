"""The MCP server that variables name, from POST /api/chat to the messages that are kept."""

from pathlib import Path

import pytest

from tests.fakes.client import http, post_chat
from tests.fakes.gateway import Setup, running
from tests.fakes.mcp_server import FakeMcp, serving
from tests.fakes.model_server import Reply, scripted_server

CALL = Reply(calls=[("c1", "default__echo", '{"text":"hello"}')], usage=(20, 2))


@pytest.mark.requirement("S-004-Cfg-02", "S-004-MCP-01", "S-004-MCP-02", "S-004-MCP-05")
async def test_a_server_of_the_environment_is_called_and_its_calls_are_kept(tmp_path: Path) -> None:
    async with (
        scripted_server([CALL, Reply("It says hello.", usage=(30, 3))]) as model,
        serving(FakeMcp()) as server,
        running(
            Setup(model.url, tools=("mcp:default",)),
            tmp_path,
            environment={"AGENT_MCP_SERVER_URL": server.url, "AGENT_MCP_TIMEOUT": "5"},
        ) as site,
    ):
        answer = (await post_chat(site.url, "Say hello.")).json
        where = f"{site.url}/api/conversations/{answer['conversation_id']}/messages"
        _, asked, result, last = (await http(where)).json["messages"]

    assert (answer["response"], answer["usage"]["input_tokens"]) == ("It says hello.", 50)
    (made,) = answer["tool_calls_made"]
    assert (made["name"], made["status"], made["result"]) == (
        "default__echo",
        "success",
        "echo hello",
    )
    function = {"name": "default__echo", "arguments": '{"text":"hello"}'}
    assert asked["metadata"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": function}
    ]
    assert (result["role"], result["content"]) == ("tool", "echo hello")
    assert last["metadata"] == {"token_count": last["token_count"], "model": "m"}
    assert server.calls[0].headers["x-user-id"] == "local"
