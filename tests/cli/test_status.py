"""`exogate status` asks the running gateway how it is."""

import pytest

from gateway.cli.status import server
from tests.cli.conftest import Shell


def test_a_gateway_that_is_ready_says_so(shell: Shell) -> None:
    ran = shell("status")

    assert ran.code == 0
    assert "ready" in ran.out
    assert "demo, second" in ran.out
    assert "  Plugins    " in ran.out
    assert shell("--json", "status").json["ready"] is True


@pytest.mark.parametrize(
    ("state", "tools", "why", "told"),
    [
        ("idle", 0, None, "files (idle)"),
        ("connected", 3, None, "files (connected, 3 tools)"),
        ("failing", 0, "it ended: exit 1", "files (failing, it ended: exit 1)"),
    ],
)
def test_an_mcp_server_is_told_with_its_state(
    state: str, tools: int, why: str | None, told: str
) -> None:
    assert server({"name": "files", "state": state, "tools": tools, "why": why}) == told
