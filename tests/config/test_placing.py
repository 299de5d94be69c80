"""Every kind of mistake is shown at its exact place."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.config.problems import SHOWN
from tests.config.arena import Arena

ECHO = "[[plugins]]\nname = 'echo'\npath = 'bundled:echo'\n"

# name -> (file, [(line, column, code, key), ...])
TABLE: dict[str, tuple[str, list[tuple[int, int, str, str]]]] = {
    "unknown key at the top": ("prot = 1", [(1, 1, "CFG002", "prot")]),
    "unknown key in a section": ("# c\n[gateway]\n  prot = 1", [(3, 3, "CFG002", "gateway.prot")]),
    "unknown section": ("[gatewy]\nport = 1", [(1, 2, "CFG002", "gatewy")]),
    "unknown dotted key": ("gateway.prot = 1", [(1, 9, "CFG002", "gateway.prot")]),
    "unknown quoted key": ('[gateway]\n"po rt" = 1', [(2, 1, "CFG002", 'gateway."po rt"')]),
    "unknown key in an inline table": (
        'gateway = { port = 1, "prot" = 2 }',
        [(1, 23, "CFG002", "gateway.prot")],
    ),
    "unknown key in an array of tables": (
        '[[agents]]\nid = "a"\n[[agents]]\nid = "b"\nnaem = 1',
        [(5, 1, "CFG002", "agents.1.naem")],
    ),
    "unknown key in a table of an array": (
        '[[agents]]\nid = "a"\n[agents.limits]\nx = 1',
        [(4, 1, "CFG002", "agents.0.limits.x")],
    ),
    "quoted key that is known": ('["gateway"]\n"port" = true', [(2, 10, "CFG005", "gateway.port")]),
    "wrong type": ('[gateway]\nport = "7200"', [(2, 8, "CFG005", "gateway.port")]),
    "bool for a number": ("gateway.port = true", [(1, 16, "CFG005", "gateway.port")]),
    "date for a string": ("[gateway]\nbind = 1979-05-27", [(2, 8, "CFG005", "gateway.bind")]),
    "wide characters before": (
        'gateway = { bind = "ö€𝄞", port = 70000 }',
        [(1, 20, "CFG006", "gateway.bind"), (1, 34, "CFG007", "gateway.port")],
    ),
    "table for a list": ("[tokens]\nname = 1", [(1, 2, "CFG005", "tokens")]),
    "list for a table": ("[[gateway]]\nport = 1", [(1, 3, "CFG005", "gateway")]),
    "a number in a list of strings": (
        "[agent]\ntools = [\n  # c\n  'echo',\n  7,\n]",
        [(5, 3, "CFG005", "agent.tools.1")],
    ),
    "below the range": ("limits.max_iterations = 0", [(1, 25, "CFG007", "limits.max_iterations")]),
    "huge number": (f"gateway.port = {'9' * 4000}", [(1, 16, "CFG007", "gateway.port")]),
    "infinite": ("gateway.drain_s = inf", [(1, 19, "CFG005", "gateway.drain_s")]),
    "not a choice": (
        "[observability]\nlog_level = 'inof'",
        [(2, 13, "CFG003", "observability.log_level")],
    ),
    "budget word": ("context.token_budget = 'atuo'", [(1, 24, "CFG003", "context.token_budget")]),
    "budget range": ("context.token_budget = 3999", [(1, 24, "CFG007", "context.token_budget")]),
    "version": ("config_version = 2", [(1, 18, "CFG003", "config_version")]),
    "missing key": (
        "[[tokens]]\nname = 'a'\ntoken = 'abcd'\n[[tokens]]\nname = 'b'",
        [(4, 1, "CFG004", "tokens.1.token")],
    ),
    "missing key of an inline table": (
        "tokens = [{ name = 'a', token = 't1' }, { name = 'b' }]",
        [(1, 41, "CFG004", "tokens.1.token")],
    ),
    "missing key of a nested table": (
        "[agent.fallback]\nmodel = 'x'",
        [(1, 1, "CFG004", "agent.fallback.provider")],
    ),
    "missing wire and address": (
        "[gateway]\nport = 1\n\n[providers.mine]\nmax_retries = 1",
        [(4, 1, "CFG004", "providers.mine.wire"), (4, 1, "CFG004", "providers.mine.base_url")],
    ),
    "unknown provider": ("[agent]\nprovider = 'antropic'", [(2, 12, "CFG003", "agent.provider")]),
    "unknown provider of a fallback": (
        "[agent.fallback]\nprovider = 'opnai'",
        [(2, 12, "CFG003", "agent.fallback.provider")],
    ),
    "unknown tool": (
        f"{ECHO}[agent]\ntools = ['echo', 'ehco']",
        [(5, 18, "CFG009", "agent.tools.1")],
    ),
    "tool twice": (
        f"{ECHO}[agent]\ntools = ['echo', 'echo']",
        [(5, 18, "CFG008", "agent.tools.1")],
    ),
    "a capability": (
        f"{ECHO}capabilities = [\n  'store:x', # c\n  'http:*.example.com',\n]",
        [(6, 3, "CFG006", "plugins.0.capabilities.1")],
    ),
    "a secret's host": (
        f"{ECHO}capabilities = ['http:a.example', 'http:b.example']\n"
        "secrets.k = { value = 'v', hosts = ['a.example', 'c.example'] }",
        [(5, 50, "CFG009", "plugins.0.secrets.k.hosts.1")],
    ),
    "something that is no JSON": (
        f"{ECHO}[plugins.config]\na = [1, {{ b = 1979-05-27 }}]",
        [(5, 15, "CFG006", "plugins.0.config.a.1.b")],
    ),
    "a plugin twice": (f"{ECHO}{ECHO}", [(5, 8, "CFG008", "plugins.1.name")]),
    "a missing plugin": (
        "[[plugins]]\nname = 'x'\npath = 'x.wasm'",
        [(3, 8, "CFG012", "plugins.0.path")],
    ),
    "agent twice": (
        "[agent]\nid = 'a'\n[[agents]]\nid = 'b'\n[[agents]]\nid = 'a'",
        [(6, 6, "CFG008", "agents.1.id")],
    ),
    "agent id": ("[[agents]]\nid = 'a_b'", [(2, 6, "CFG006", "agents.0.id")]),
    "token twice": (
        "[[tokens]]\nname = 'a'\ntoken = '1234'\n[[tokens]]\nname = 'a'\ntoken = '1234'",
        [(5, 8, "CFG008", "tokens.1.name"), (6, 9, "CFG008", "tokens.1.token")],
    ),
    "reserved token name": (
        "[[tokens]]\nname = 'operator'\ntoken = '1234'",
        [(2, 8, "CFG006", "tokens.0.name")],
    ),
    "scopes": (
        "[[tokens]]\nname = 'a'\ntoken = '1234'\nscopes = ['chta', 'agent:x', 'metric']",
        [
            (4, 11, "CFG003", "tokens.0.scopes.0"),
            (4, 19, "CFG009", "tokens.0.scopes.1"),
            (4, 30, "CFG003", "tokens.0.scopes.2"),
        ],
    ),
    "binding without an agent": (
        "[[bindings]]\nagent_id = 'nobody'\nchannel = 'x'",
        [(2, 12, "CFG009", "bindings.0.agent_id")],
    ),
    "binding without a place": (
        "[[bindings]]\nagent_id = 'demo'\nchannel = 'x'\n\n[[bindings]]\nagent_id = 'demo'",
        [(5, 1, "CFG004", "bindings.1")],
    ),
    "soul": ("[agent]\nsoul_path = 'no.md'", [(2, 13, "CFG012", "agent.soul_path")]),
    "unset variable": ("gateway.token = '${env:NOPE}'", [(1, 17, "CFG010", "gateway.token")]),
    "missing secret": ("gateway.token = '${file:nope}'", [(1, 17, "CFG011", "gateway.token")]),
    "not a reference": ("gateway.token = '${NOPE}'", [(1, 17, "CFG006", "gateway.token")]),
    "open door": ("[gateway]\nbind = '0.0.0.0'", [(2, 8, "CFG013", "gateway.bind")]),
    "plain http": (
        "[agent]\nprovider = 'ollama'\nmodel = 'x'\n"
        "[providers.ollama]\nbase_url = 'http://10.0.0.1/v1'",
        [(5, 12, "CFG006", "providers.ollama.base_url")],
    ),
    "no key": ("[agent]\nprovider = 'anthropic'", [(2, 12, "CFG014", "agent.provider")]),
    "more than the model gives": (
        "[agent]\nprovider = 'demo'\nmodel = 'claude-test'\nmax_tokens = 8193",
        [(4, 14, "CFG007", "agent.max_tokens")],
    ),
    "with CRLF and a BOM": (
        "\ufeffconfig_version = 3\r\n[gateway]\r\nport = 'x'\r\n",
        [(1, 18, "CFG003", "config_version"), (3, 8, "CFG005", "gateway.port")],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_mistake_is_shown_at_its_place(arena: Arena, name: str) -> None:
    text, expected = TABLE[name]

    problems = arena.problems(text)

    assert [(p.line, p.column, p.code, p.key) for p in problems] == expected
    assert all(p.source == "config.toml" and p.message and p.fix for p in problems)


def test_a_file_of_a_newer_version_is_told_apart_from_a_wrong_value(arena: Arena) -> None:
    (problem,) = arena.problems("config_version = 2")

    assert "does not read version 2 of this file" in problem.message
    assert "install a newer exogate" in problem.fix


@pytest.mark.requirement("S-003-Config-08")
def test_everything_that_is_wrong_is_said_at_once(arena: Arena) -> None:
    text = "\n".join(
        [
            "config_version = 9",
            "[gateway]",
            "prot = 1",
            "bind = '0.0.0.0'",
            "[agent]",
            "provider = 'antropic'",
            "soul_path = 'no.md'",
            "[[bindings]]",
            "agent_id = 'nobody'",
            "[[tokens]]",
            "name = 'a'",
            "token = '${env:NOPE}'",
            "scopes = ['chta']",
            "[limits]",
            "max_iterations = 51",
        ]
    )

    problems = arena.problems(text)

    assert [p.code for p in problems] == [
        "CFG003",
        "CFG002",
        "CFG003",
        "CFG012",
        "CFG004",
        "CFG009",
        "CFG010",
        "CFG003",
        "CFG007",
    ]
    assert [p.line for p in problems] == sorted(p.line for p in problems)


def test_a_problem_is_rendered_with_its_line_a_caret_and_the_fix(arena: Arena) -> None:
    refusal = arena.refusal("[gateway]\nprot = 7200            # typo: port")

    assert refusal.render() == (
        'config.toml:2:1: error[CFG002] gateway.prot: unknown key "prot"\n'
        "    2 | prot = 7200            # typo: port\n"
        "      | ^\n"
        '      = fix: did you mean "port"?\n'
        "1 error. Nothing was changed."
    )


def test_the_caret_stands_below_the_place(arena: Arena) -> None:
    (problem,) = arena.problems("gateway = {\tport = 70000 }")

    assert problem.text[problem.caret :].startswith("70000")


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (
            "gateway.port = '7200'",
            '"7200" should be a whole number',
            "write a whole number, without quotes",
        ),
        (
            "gateway.port = 70000",
            "70000 is out of range: it should be at most 65535",
            "write a number: at most 65535",
        ),
        ("gateway.bind = 7", "7 should be a text", 'put it in quotes: "7"'),
        ("gateway.token = 7", "*** should be a text", 'put it in quotes: "..."'),
        ("[tokens]\nname = 1", "a table should be a list", "write [[tokens]]"),
        ("[[gateway]]\nport = 1", "a list should be a table", "write [gateway] with one"),
        ("agent.id = 'a b'", '"a b" has the wrong form', "letters, digits and hyphens"),
        ("context.token_budget = 'atuo'", '"atuo" is not allowed here', 'did you mean "auto"?'),
        ("gateway.allowed_origins = ['x']", "not scheme://", "write scheme://host"),
        ("store.url = 'embeded'", '"embeded" is not allowed here', 'did you mean "embedded"?'),
        ("store.url = 7", "7 is not allowed here", "choose one of: embedded, memory"),
    ],
)
def test_a_value_is_answered_with_what_was_expected(
    arena: Arena, text: str, message: str, fix: str
) -> None:
    (problem,) = arena.problems(text)

    assert message in problem.message
    assert fix in problem.fix


def test_a_key_at_the_wrong_place_is_sent_to_the_right_one(arena: Arena) -> None:
    (problem,) = arena.problems("port = 1")

    assert problem.fix == "it belongs in [gateway]"


def test_what_follows_from_a_mistake_is_not_reported_again(arena: Arena) -> None:
    text = "[[agents]]\nid = 'a b'\n[[bindings]]\nagent_id = 'a b'\nchannel = 'x'"

    assert [p.key for p in arena.problems(text)] == ["agents.0.id"]


def test_more_mistakes_than_anyone_reads_are_counted(arena: Arena) -> None:
    refusal = arena.refusal("\n".join(f"k{number} = 1" for number in range(5_000)))

    assert len(refusal.problems) == SHOWN
    assert refusal.left_out == 5_000 - SHOWN
    assert "5000 errors (4900 of them not shown)" in refusal.render()


def test_a_long_line_is_cut_around_the_caret(arena: Arena) -> None:
    (problem,) = arena.problems(f"gateway = {{ bind = '{'a' * 50_000}', port = 1 }}")

    assert len(problem.text) < 300
    assert len(problem.message) < 300
    assert problem.caret <= len(problem.text)


@pytest.mark.parametrize(
    ("extra", "missing", "text", "key", "line"),
    [
        ("mcp", "has_mcp", '[mcp.servers.notes]\ncommand = "notes"', "mcp.servers.notes", 1),
        ("mcp", "has_mcp", "\n[mcp.serve]\nenabled = true", "mcp.serve.enabled", 3),
        ("surrealdb", "has_surrealdb", '[store]\nurl = "ws://db:8000"', "store.url", 2),
        (
            *("cluster", "has_nats", '[store]\nurl = "ws://db:8000"\n[cluster]\nurl = "nats://n"'),
            *("cluster.url", 4),
        ),
        (
            *("otel", "has_otel", '[observability]\notlp_endpoint = "http://otel:4318"'),
            *("observability.otlp_endpoint", 2),
        ),
    ],
)
def test_an_extra_that_is_not_installed_is_an_error_at_its_place(
    arena: Arena, extra: str, missing: str, text: str, key: str, line: int
) -> None:
    known: dict[str, Any] = {missing: False}

    (problem,) = replace(arena, known=replace(arena.known, **known)).problems(text)

    assert (problem.code, problem.key, problem.line) == ("CFG016", key, line)
    assert f"pip install 'exogate[{extra}]'" in problem.fix
