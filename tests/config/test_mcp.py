"""MCP servers in the configuration: what is read, and what is refused at its place."""

import pytest

from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef, McpServing
from tests.config.arena import Arena

BOOKS = "[mcp.servers.books]\nurl = 'https://books.example/mcp'\n"


def test_a_server_is_read_with_its_secrets_followed(arena: Arena) -> None:
    arena.secret("books", "s3cret")
    headers = "headers = { Authorization = 'Bearer ${file:books}' }\n"
    files = "[mcp.servers.files]\ncommand = 'npx'\nargs = ['-y']\nenv = { LOG_LEVEL = 'warn' }\n"

    config = arena.load(BOOKS + headers + files)

    assert config.mcp.servers == (
        McpServerDef(
            "books",
            url="https://books.example/mcp",
            headers={"Authorization": Secret("Bearer s3cret")},
            hidden=(Secret("Bearer s3cret"),),
        ),
        McpServerDef("files", command="npx", args=("-y",), env={"LOG_LEVEL": Secret("warn")}),
    )
    assert config.notices == ()


@pytest.mark.requirement("S-004-Cfg-03", "S-004-Cfg-04")
def test_a_server_has_ten_seconds_and_three_more_tries(arena: Arena) -> None:
    (server,) = arena.load(BOOKS).mcp.servers

    assert (server.timeout_s, server.retry_attempts) == (10.0, 3)


@pytest.mark.requirement("S-004-Cfg-03", "S-004-Cfg-04", "S-004-MCP-03")
@pytest.mark.parametrize("line", ["timeout_s = 0.1", "timeout_s = 600", "retry_attempts = 0"])
def test_a_bound_of_a_server_may_be_reached(arena: Arena, line: str) -> None:
    (server,) = arena.load(BOOKS + line).mcp.servers

    name, value = line.split(" = ")
    assert getattr(server, name) == float(value)


@pytest.mark.requirement("S-004-Cfg-03", "S-004-Cfg-04")
@pytest.mark.parametrize(
    "line", ["timeout_s = 0.0", "timeout_s = 600.1", "retry_attempts = -1", "retry_attempts = 11"]
)
def test_a_bound_of_a_server_is_not_passed(arena: Arena, line: str) -> None:
    (problem,) = arena.problems(BOOKS + line)

    assert (problem.code, problem.line) == ("CFG007", 3)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[mcp.servers.x]", "mcp.servers.x", "needs either url or command"),
        (BOOKS + "command = 'npx'", "mcp.servers.books", "needs either url or command"),
        (BOOKS + "args = ['-y']", "mcp.servers.books.args", "has a url"),
        (
            "[mcp.servers.x]\ncommand = 'npx'\nheaders = { A = 'b' }",
            "mcp.servers.x.headers",
            "has a command",
        ),
        (
            BOOKS + "headers = { x-user-id = 'ann' }",
            "mcp.servers.books.headers.x-user-id",
            "cannot have a fixed value",
        ),
        (
            BOOKS + "headers = { Content-Length = '1' }",
            "mcp.servers.books.headers.Content-Length",
            "the gateway itself sets",
        ),
        (
            BOOKS + "user_header = 'Mcp-Session-Id'",
            "mcp.servers.books.user_header",
            "the gateway itself sets",
        ),
        ("[agent]\ntools = ['mcp:book']\n" + BOOKS, "agent.tools.0", "no MCP server"),
        ("[agent]\ntools = ['mcp:books/']\n" + BOOKS, "agent.tools.0", "names no tool"),
        ("[agent]\ntools = ['mcp:books', 'mcp:books']\n" + BOOKS, "agent.tools.1", "twice"),
    ],
)
def test_what_says_nothing_of_a_server_is_refused_at_its_place(
    arena: Arena, text: str, key: str, said: str
) -> None:
    (problem,) = arena.problems(text)

    assert problem.key == key
    assert said in problem.message


def test_a_server_that_is_probably_meant_is_named(arena: Arena) -> None:
    (problem,) = arena.problems("[agent]\ntools = ['mcp:book']\n" + BOOKS)

    assert 'did you mean "books"?' in problem.fix


def test_what_a_server_is_given_is_never_shown(arena: Arena) -> None:
    files = "[mcp.servers.files]\ncommand = 'npx'\nenv = { PLAIN = 'of-the-env' }\n"

    config = arena.load(files)

    assert "of-the-env" not in repr(config)


SERVED = """
[agent]

[[plugins]]
name = "echo"
path = "bundled:echo"

[[plugins]]
name = "off"
path = "bundled:fetch"
enabled = false
"""


def test_nothing_is_served_unless_it_is_enabled(arena: Arena) -> None:
    assert arena.load("[agent]").mcp.serve == McpServing()


def test_tools_of_plugins_are_served_in_their_order(arena: Arena) -> None:
    config = arena.load(f'{SERVED}[mcp.serve]\nenabled = true\ntools = ["off", "echo"]')

    assert config.mcp.serve == McpServing(is_enabled=True, tools=("off", "echo"))
    (notice,) = config.notices
    assert (notice.code, notice.key) == ("plugin-disabled", "mcp.serve.tools.0")


@pytest.mark.parametrize(
    "tool", ["memory", "result", "delegate_librarian", "mcp:files", "mcp:files/read", "ehco"]
)
def test_what_is_no_plugin_is_not_served(arena: Arena, tool: str) -> None:
    (problem,) = arena.problems(f'{SERVED}[mcp.serve]\ntools = ["echo", "{tool}"]')

    assert (problem.key, problem.line) == ("mcp.serve.tools.1", 13)
    assert problem.message == f'there is no plugin "{tool}"'
    assert "choose one of: echo, off" in problem.fix


def test_no_plugin_is_served_twice(arena: Arena) -> None:
    (problem,) = arena.problems(f'{SERVED}[mcp.serve]\ntools = ["echo", "echo"]')

    assert "twice" in problem.message
