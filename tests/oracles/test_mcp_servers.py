"""Public MCP servers behind a whole gateway: their tools in turns over HTTP, in both eras, until they die."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.process import tree
from tests.fakes.client import Client, connected, post_chat
from tests.fakes.model_server import Asked, Reply
from tests.oracles.conftest import NODE, Site, opened

SERVERS = NODE.parents[1] / "@modelcontextprotocol"
EVERYTHING = SERVERS / "server-everything" / "dist" / "index.js"
BIN = Path(sys.executable).parent
SECRET = "s3cret-of-the-environment"
WAIT_S = 30.0
ANSWER = "It is done."


def program(name: str, command: Path, *args: object, env: Mapping[str, str] | None = None) -> str:
    told = f"command = {json.dumps(str(command))}\nargs = {json.dumps([str(one) for one in args])}"
    values = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (env or {}).items())
    return f"[mcp.servers.{name}]\n{told}\nenv = {{ {values} }}\ntimeout_s = 20\n"


def listing(*names: str) -> tuple[str, ...]:
    return tuple(f"mcp:{name}" for name in names)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One gateway with five programs."""
    folder = tmp_path_factory.mktemp("served").resolve()
    files, repository = folder / "files", folder / "repository"
    files.mkdir()
    (files / "poem.txt").write_text("Roses are red.")
    subprocess.run(["git", "init", "-q", repository], check=True)
    (repository / "new.txt").write_text("new")
    rest = "".join(
        [
            program("everything", NODE, EVERYTHING, env={"API_TOKEN": SECRET}),
            program("files", NODE, SERVERS / "server-filesystem" / "dist" / "index.js", files),
            program(
                "memory",
                NODE,
                SERVERS / "server-memory" / "dist" / "index.js",
                env={"MEMORY_FILE_PATH": str(folder / "memory.json")},
            ),
            program("time", BIN / "mcp-server-time"),
            program("git", BIN / "mcp-server-git", "--repository", repository),
            "[limits]\nmax_tool_calls_per_turn = 20\n",
        ]
    )
    tools = listing("everything", "files", "memory", "time", "git")
    with opened(folder, tools=tools, rest=rest) as site:
        yield site


def calling(tool: str, arguments: Mapping[str, object]) -> Callable[[Asked], Reply]:
    """The model calls the tool once, and ends with what it heard."""

    def script(asked: Asked) -> Reply:
        if asked.body["messages"][-1]["role"] == "tool":
            return Reply(ANSWER)
        return Reply(calls=[("c1", tool, json.dumps(arguments))])

    return script


def called(site: Site, tool: str, **arguments: object) -> tuple[str, str]:
    """A turn over HTTP: how the call ended, and what the model got of it."""
    site.script = calling(tool, arguments)
    answer = anyio.run(lambda: post_chat(site.url, "Do it.", token=site.token, wait_s=WAIT_S)).json

    assert answer["response"] == ANSWER
    (made,) = answer["tool_calls_made"]
    assert site.model.requests[-1].last_text == made["result"]
    return made["status"], made["result"]


def offered(site: Site) -> set[str]:
    return {one["function"]["name"] for one in site.model.requests[-1].body.get("tools", ())}


def folder_of(site: Site) -> Path:
    """As the server of files names it, once the repository lies beside it."""
    _, said = called(site, "files__list_allowed_directories")
    return Path(said.split("\n")[-1])


def test_the_tools_of_all_are_offered_in_one_turn(served: Site) -> None:
    assert called(served, "everything__echo", message="hi") == ("success", "Echo: hi")

    names = offered(served)
    assert {"everything__get-sum", "files__read_text_file", "memory__read_graph"} <= names
    assert {"time__convert_time", "git__git_status"} <= names
    descriptions = {
        one["function"]["name"]: one["function"]["description"]
        for one in served.model.requests[-1].body["tools"]
    }
    assert descriptions["git__git_status"].startswith("(from the MCP server git) ")


def test_structured_content_fits_what_was_promised(served: Site) -> None:
    status, said = called(served, "everything__get-structured-content", location="Chicago")

    assert status == "success"
    assert json.loads(said)["humidity"] == 82


def test_arguments_that_do_not_fit_never_reach_the_server(served: Site) -> None:
    status, said = called(served, "everything__get-structured-content", location="Rome")

    assert status == "error"
    assert "The arguments of everything__get-structured-content are not valid: location" in said


def test_a_picture_is_named_with_its_size(served: Site) -> None:
    _, said = called(served, "everything__get-tiny-image")

    assert "[image/png, " in said
    assert " bytes: not shown]" in said


def test_links_to_resources_are_named(served: Site) -> None:
    _, said = called(served, "everything__get-resource-links", count=2)

    assert said.count("[resource: ") == 2
    assert "demo://resource/" in said


def test_a_resource_that_is_in_the_result_is_text(served: Site) -> None:
    _, said = called(
        served, "everything__get-resource-reference", resourceType="Text", resourceId=1
    )

    assert "Resource 1: This is a plaintext resource" in said


def test_what_a_server_shows_of_its_environment_has_no_secret(served: Site) -> None:
    status, said = called(served, "everything__get-env")

    assert status == "success"
    assert json.loads(said)["API_TOKEN"] == "***"
    assert not {name for name in json.loads(said) if name.startswith("EXOGATE")}


def test_an_error_of_a_tool_is_one(served: Site) -> None:
    outside = called(served, "files__read_text_file", path="/etc/passwd")
    nowhere = called(served, "time__get_current_time", timezone="Mars/Olympus")

    assert outside[0] == nowhere[0] == "error"
    assert "Access denied" in outside[1]
    assert "Mars/Olympus" in nowhere[1]


def test_files_are_read_and_written(served: Site) -> None:
    folder = folder_of(served)
    written = called(served, "files__write_file", path=str(folder / "n.txt"), content="Violets.")
    read = called(served, "files__read_text_file", path=str(folder / "poem.txt"))

    assert written[0] == "success"
    assert (folder / "n.txt").read_text() == "Violets."
    assert read == ("success", "Roses are red.")


def test_what_is_put_into_memory_is_found_again(served: Site) -> None:
    entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
    put = called(served, "memory__create_entities", entities=[entity])
    found = called(served, "memory__search_nodes", query="tea")

    assert put[0] == found[0] == "success"
    assert "likes tea" in found[1]


def test_the_servers_for_python_answer(served: Site) -> None:
    repository = folder_of(served).parent / "repository"
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}

    _, time = called(served, "time__convert_time", **noon)
    status, git = called(served, "git__git_status", repo_path=str(repository))

    assert "21:00" in time
    assert status == "success"
    assert "new.txt" in git


def mcp_of(site: Site) -> dict[str, Any]:
    async def ask() -> list[dict[str, Any]]:
        async with connected(site.url, site.token, wait_s=WAIT_S) as client:
            return list((await client.call("status"))["mcp"])

    return {one["name"]: one for one in anyio.run(ask)}


def test_both_eras_are_spoken(served: Site) -> None:
    called(served, "everything__echo", message="hi")

    versions = {name: one["version"] for name, one in mcp_of(served).items()}

    assert {versions[name] for name in ("everything", "files", "memory")} == {"2025-11-25"}
    assert {versions[name] for name in ("time", "git")} == {"2026-07-28"}


@contextmanager
def everything_over_http(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [NODE, EVERYTHING, "streamableHttp"],
        env={"PATH": os.defpath, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        while b"listening" not in (line := process.stderr.readline()):
            assert line, "the server did not start"
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stderr.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


LONG = ("trigger-long-running-operation", {"duration": 60, "steps": 60})


@asynccontextmanager
async def in_the_middle(
    site: Site, client: Client, tool: str
) -> AsyncIterator[list[dict[str, Any]]]:
    """A turn whose call of the tool is under way; its events, once the context is left."""
    site.script = calling(tool, LONG[1])
    run = await client.send("Take your time.")
    await client.until(run["run_id"], lambda told: told[-1:] and told[-1]["type"] == "tool_call")
    events: list[dict[str, Any]] = []
    yield events
    events += await client.ended(run["run_id"])


def test_a_server_over_http_that_is_killed_is_missed_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    rest = f"""
[mcp.servers.far]
url = "http://127.0.0.1:{port}/mcp"
retry_attempts = 1
timeout_s = 5
"""

    async def walk(site: Site) -> None:
        async with connected(site.url, site.token, wait_s=WAIT_S) as client:
            with everything_over_http(port) as server:
                async with in_the_middle(site, client, f"far__{LONG[0]}") as cut:
                    server.send_signal(signal.SIGKILL)
            run = await client.send("Anybody?")
            without = await client.ended(run["run_id"])
            names = offered(site)
            await client.call("events.subscribe", types=["mcp.connected"])
            with everything_over_http(port):
                await client.send("And now?")
                await client.until_told(lambda told: told)
                site.script = calling("far__echo", {"message": "again"})
                run = await client.send("Say it.")
                after = await client.ended(run["run_id"])

        assert cut[-1]["response"] == ANSWER
        assert [one["tool_call"]["status"] for one in cut if one["type"] == "tool_result"] == [
            "error"
        ]
        assert without[-1]["type"] == "done"
        (notice,) = [one for one in without if one["type"] == "system"]
        assert notice["metadata"]["error_type"] == "mcp_connection_error"
        assert names == set()
        (again,) = [one for one in after if one["type"] == "tool_result"]
        assert again["tool_call"]["result"] == "Echo: again"

    with opened(tmp_path, tools=listing("far"), rest=rest) as site:
        anyio.run(walk, site)


def test_a_program_that_is_killed_is_started_anew_and_none_is_left(tmp_path: Path) -> None:
    # Repeated it would take its time again: the server says that it only reads.
    rest = program("near", NODE, EVERYTHING) + "retry_attempts = 0\n"
    seen: dict[int, int] = {}

    async def walk(site: Site) -> None:
        async with connected(site.url, site.token, wait_s=WAIT_S) as client:
            async with in_the_middle(site, client, f"near__{LONG[0]}") as cut:
                (first,) = programs(site)
                os.kill(first, signal.SIGKILL)
            site.script = calling("near__echo", {"message": "again"})
            run = await client.send("Say it.")
            after = await client.ended(run["run_id"])
            (second,) = programs(site)
            seen.update({first: -1, second: os.pidfd_open(second)})

        (error,) = [one["tool_call"] for one in cut if one["type"] == "tool_result"]
        assert error["status"] == "error"
        assert cut[-1]["response"] == ANSWER
        (again,) = [one for one in after if one["type"] == "tool_result"]
        assert again["tool_call"]["result"] == "Echo: again"

    with opened(tmp_path, tools=listing("near"), rest=rest) as site:
        anyio.run(walk, site)
    _, watched = seen.values()  # the gateway was killed
    assert select.select([watched], [], [], WAIT_S)[0] == [watched]
    os.close(watched)


def programs(site: Site) -> list[int]:
    """Those of server-everything that the gateway runs now."""
    return [
        pid
        for pid in tree(site.pid)[1:]
        if str(EVERYTHING).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
