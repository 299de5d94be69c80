"""Public clients of MCP, and the conformance suite of the protocol, against `POST /mcp`.

Of the suite's server scenarios these do not apply, because the gateway serves tools and nothing else:
resources-*, prompts-*, completion-complete, logging-set-level, elicitation-*, input-required-result-*,
tasks-*, sep-2640-*, caching (it asks for prompts and resources as well). Others want tools of fixed
names, and a plugin's are called PLUGIN__TOOL: tools-call-*, json-schema-2020-12,
http-custom-header-server-validation and, for one that samples, server-stateless. server-sse-* and
server-session-lifecycle look for streams and sessions, which are not there. dns-rebinding-protection
sends an Origin without a credential and wants it let in: who comes with an Origin is a page in a
browser, and needs a token on loopback too.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.fakes.mcp_client import ERAS, mcp_client, names_of, text_of
from tests.oracles.conftest import NODE, Site, opened

PACKAGES = NODE.parents[1]
CONFORMANCE = PACKAGES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
INSPECTOR = PACKAGES / ".bin" / "mcp-inspector"
SCENARIOS = ("server-initialize", "ping", "tools-list", "http-header-validation")
SERVE = """
[mcp.serve]
enabled = true
tools = ["calc"]
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Without a token: the suite has no way to send one."""
    with opened(tmp_path_factory.mktemp("serving"), token="", tools=("calc",), rest=SERVE) as site:
        yield site


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_of_the_conformance_suite_passes(
    serving: Site, tmp_path: Path, scenario: str
) -> None:
    command = [NODE, CONFORMANCE, "server", "--url", f"{serving.url}/mcp", "--scenario", scenario]
    done = subprocess.run([*command, "-o", tmp_path], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout[-4000:]
    (file,) = tmp_path.rglob("checks.json")
    checks = [one["status"] for one in json.loads(file.read_text())]
    assert "SUCCESS" in checks
    assert not {"FAILURE", "WARNING"} & set(checks)


def inspect(serving: Site, *words: str) -> dict[str, object]:
    command = [NODE, INSPECTOR, "--cli", f"{serving.url}/mcp", "--transport", "http", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told


def test_the_inspector_lists_and_calls_tools(serving: Site) -> None:
    tools = inspect(serving, "--method", "tools/list")["tools"]
    called = ("--method", "tools/call", "--tool-name")
    sum_ = inspect(serving, *called, "calc", "--tool-arg", "expression=6*7")
    asked = inspect(serving, *called, "ask_agent", "--tool-arg", "message=hi")

    assert isinstance(tools, list)
    assert {tool["name"] for tool in tools} == {"calc", "ask_agent"}
    assert "42" in json.dumps(sum_)
    assert "to hi" in json.dumps(asked)


@pytest.mark.parametrize("era", ERAS)
def test_the_sdk_lists_and_calls_tools_and_asks_agents(serving: Site, era: str) -> None:
    async def speak() -> tuple[list[str], str, str]:
        async with mcp_client(serving.url, era=era) as client:
            sum_ = await client.call_tool("calc", {"expression": "6*7"})
            asked = await client.call_tool("ask_agent", {"message": "hi"})
            return await names_of(client), text_of(sum_), text_of(asked)

    names, sum_, answer = anyio.run(speak)

    assert set(names) == {"calc", "ask_agent"}
    assert "42" in sum_
    assert answer == "to hi"
