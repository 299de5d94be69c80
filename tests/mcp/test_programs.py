"""Servers that are programs: what they are given, and that nothing of them is left."""

import json
import logging
import sys
from pathlib import Path

import anyio
import pytest

from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef
from tests.fakes.mcp_child import GOOD, LONG_LINE, NOISY, OF_SDK, SILENT
from tests.mcp.stage import staged

USUAL = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"}
OF_PYTHON = {"LC_CTYPE"}  # which the interpreter sets for itself


def program(source: str, timeout_s: float = 5, **env: str) -> McpServerDef:
    secrets = {name: Secret(value) for name, value in env.items()}
    args = ("-c", source)
    return McpServerDef(
        "child",
        command=sys.executable,
        args=args,
        env=secrets,
        timeout_s=timeout_s,
        retry_attempts=0,
    )


async def is_alive(pid: int) -> bool:
    try:
        stat = await anyio.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.split(") ")[1][0] != "Z"


@pytest.mark.requirement("S-004-MCP-01")
async def test_a_program_sees_the_usual_variables_and_its_own_which_no_log_shows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gateway.mcp")
    async with staged(program(OF_SDK, TOKEN="s3cret"), tmp_path) as stage:
        assert await stage.gate.prepare(stage.agent) == []
        result = await stage.call("env")

    seen = json.loads(result.content)
    assert seen.keys() - OF_PYTHON <= USUAL | {"TOKEN"}
    assert seen["TOKEN"] == "s3cret"
    assert (await anyio.Path(tmp_path / "child").stat()).st_mode & 0o777 == 0o700
    said = [
        one.__dict__["line"] for one in caplog.records if one.getMessage() == "mcp_server_output"
    ]
    assert said == ["a secret: ***"]


async def test_a_program_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    async with staged(program(GOOD), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        mine = int((await stage.call("pid")).content)
        its = int((await stage.call("fork")).content)
        assert await is_alive(mine)
        assert await is_alive(its)

    assert not await is_alive(mine)
    assert not await is_alive(its)


async def test_a_program_that_dies_takes_its_tools_along_and_is_started_anew(
    tmp_path: Path,
) -> None:
    async with staged(program(GOOD), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        result = await stage.call("die")
        await stage.until_told("mcp.disconnected")
        stage.told.clear()
        await stage.until_told("mcp.connected")
        again = await stage.call("pid")

    assert result.is_error
    assert "may have been executed" in result.content
    assert again.content.isdigit()


async def test_a_call_that_is_given_up_leaves_the_connection_as_it_is(tmp_path: Path) -> None:
    async with staged(program(GOOD), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        first = (await stage.call("pid")).content
        with anyio.move_on_after(0.3) as given_up:
            await stage.call("wait")
        second = (await stage.call("pid")).content

    assert given_up.cancelled_caught
    assert first == second


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SILENT, "within 0.5 s"),
        (LONG_LINE, "a line of more than"),
        ("raise SystemExit(1)", "it ended"),
    ],
)
async def test_a_program_that_does_not_speak_mcp_is_away(
    tmp_path: Path, source: str, said: str
) -> None:
    async with staged(program(source, 0.5 if source == SILENT else 5), tmp_path) as stage:
        (lacking,) = await stage.gate.prepare(stage.agent)
        names = stage.names()
        await stage.until(lambda: stage.server.status.why is not None)

    assert lacking.server == "child"
    assert names == []
    assert said in str(stage.server.status.why)


async def test_what_is_no_message_among_the_answers_is_passed_over(tmp_path: Path) -> None:
    async with staged(program(NOISY), tmp_path) as stage:
        assert await stage.gate.prepare(stage.agent) == []


async def test_an_answer_of_too_many_values_costs_its_call_and_not_the_program(
    tmp_path: Path,
) -> None:
    async with staged(program(GOOD), tmp_path) as stage:
        await stage.gate.prepare(stage.agent)
        before = await stage.call("pid")
        many = await stage.call("many")
        after = await stage.call("pid")

    assert many.content == "child__many: the answer has more than 50000 values"
    assert before.content == after.content


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = McpServerDef("child", command="/there/is/none", retry_attempts=0)
    async with staged(server, tmp_path) as stage:
        (lacking,) = await stage.gate.prepare(stage.agent)

    assert lacking.why == "The tools of 'child' are not available: it is unreachable."
    assert stage.server.status.why == "there is no program '/there/is/none'"
