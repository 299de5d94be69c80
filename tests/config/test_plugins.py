"""Plugins as they are configured: what they may do, which file they are, and their secrets."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.plugins import LARGEST_CONFIG
from gateway.config.problems import ConfigProblem
from gateway.config.sections import parse_capability
from gateway.domain.plugins import Origin, PluginDef, PluginLimits
from tests.config.arena import Arena

SECRET = "hunter2-hunter2"
ENVIRONMENT = {"KEY": SECRET}


def table(**keys: str) -> str:
    """One [[plugins]], with keys as TOML writes them."""
    lines = {"name": "'weather'", "path": "'bundled:echo'", **keys}
    return "[[plugins]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


def loaded(arena: Arena, environment: Mapping[str, str] = ENVIRONMENT, **keys: str) -> PluginDef:
    return replace(arena, environment=environment).load(f"[agent]\n{table(**keys)}").plugins[0]


def problems(arena: Arena, **keys: str) -> list[tuple[str, str]]:
    return [(problem.code, problem.key) for problem in refused(arena, **keys)]


def refused(arena: Arena, **keys: str) -> tuple[ConfigProblem, ...]:
    return replace(arena, environment=ENVIRONMENT).problems(table(**keys))


@pytest.mark.requirement("S-003-Plugin-01", "S-003-Config-04")
def test_a_plugin_has_all_that_is_written(arena: Arena) -> None:
    file = arena.write("wasm", "plugins/weather.wasm")

    plugin = loaded(
        arena,
        path="'plugins/weather.wasm'",
        capabilities="['http:api.example.com', 'store:cache:ro', 'host_function:clock']",
        sha256=f"'{'AB' * 32}'",
        config="{ units = 'metric', days = [1, 2.5, true, { x = -1 }] }",
        limits="{ timeout_s = 60, memory_mb = 512, fuel = 1000, output_kb = 8192, concurrency = 64 }",
        deny_unused="true",
    )

    assert plugin == PluginDef(
        name="weather",
        path=file,
        capabilities=tuple(
            parse_capability(text)
            for text in ("http:api.example.com", "store:cache:ro", "host_function:clock")
        ),
        sha256="ab" * 32,
        config={"units": "metric", "days": [1, 2.5, True, {"x": -1}]},
        limits=PluginLimits(60.0, 512, 1_000, 8_192, concurrency=64),
        deny_unused=True,
    )


def test_what_is_not_written_is_the_default(arena: Arena) -> None:
    plugin = loaded(arena)

    path = Path("/shipped/echo/tool.wasm")
    assert plugin == PluginDef(name="weather", path=path, is_bundled=True)
    assert plugin.limits == PluginLimits(10.0, 64, None, 1_024, 8)


@pytest.mark.parametrize(
    "name", ["a", "weather", "search_code", "web-2", "2", "a_b-c_d", "a" * 32, "a-"]
)
def test_a_name_makes_a_tools_name(arena: Arena, name: str) -> None:
    assert loaded(arena, name=f"'{name}'").name == name


@pytest.mark.parametrize(
    "name", ["", "A", "a__b", "_a", "a_", "-a", "a b", "ä", "a.b", "mcp:x", "a" * 33, "a\\n"]
)
def test_a_name_that_would_make_no_tools_name_is_refused(arena: Arena, name: str) -> None:
    assert problems(arena, name=f'"{name}"') == [("CFG006", "plugins.0.name")]


@pytest.mark.requirement("S-003-Plugin-02")
def test_a_name_is_there_once(arena: Arena) -> None:
    (problem,) = arena.problems(table() + table())

    assert (problem.code, problem.key, problem.line) == ("CFG008", "plugins.1.name", 5)
    assert '"weather"' in problem.message


@pytest.mark.requirement("S-003-Plugin-09")
@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("http", "write http:HOST, "),
        ("http:", "write http:HOST or http:SCHEME://HOST:PORT"),
        ("http:*.example.com", "write http:HOST, "),
        ("http:example.com:8080", "write http:https://example.com:8080"),
        ("filesystem:/", "write http:HOST, "),
        ("store:a:rw", "write http:HOST, "),
        ("host_function:", "write host_function:NAME"),
    ],
)
def test_a_capability_that_is_none_is_refused_at_its_place(
    arena: Arena, text: str, fix: str
) -> None:
    (problem,) = refused(arena, capabilities=f"['store:x', '{text}']", secrets="{ k = 'v' }")

    assert (problem.code, problem.key) == ("CFG006", "plugins.0.capabilities.1")
    assert (problem.line, problem.column) == (4, 28)
    assert f'"{text}"' in problem.message
    assert problem.fix.startswith(fix)


def test_the_same_capability_in_two_spellings_is_there_twice(arena: Arena) -> None:
    found = problems(arena, capabilities="['http:a.example', 'http:https://A.example:443']")

    assert found == [("CFG008", "plugins.0.capabilities.1")]


def test_a_file_is_found_from_the_configurations_folder(arena: Arena) -> None:
    arena.write("wasm", "sub/tool.wasm")
    arena.write(table(path="'tool.wasm'"), "sub/c.toml")

    config = replace(arena, environment={"EXOGATE_CONFIG": "sub/c.toml"}).load()

    assert config.plugins[0].path == arena.cwd / "sub/tool.wasm"
    assert not config.plugins[0].is_bundled


@pytest.mark.parametrize("path", ["'nothing.wasm'", "'.'", "'/nowhere/x.wasm'"])
def test_a_missing_file_is_told_early_unless_the_plugin_is_switched_off(
    arena: Arena, path: str
) -> None:
    assert problems(arena, path=path) == [("CFG012", "plugins.0.path")]
    assert not loaded(arena, path=path, enabled="false").is_enabled


@pytest.mark.requirement("S-003-Plugin-08")
def test_a_file_that_is_no_plugin_does_not_keep_the_gateway_from_starting(arena: Arena) -> None:
    arena.write(b"\x00not wasm", "bad.wasm")

    assert loaded(arena, path="'bad.wasm'").is_enabled


def test_what_is_not_bundled_is_refused_with_what_is(arena: Arena) -> None:
    (problem,) = refused(arena, path="'bundled:ehco'")

    assert problem.code == "CFG009"
    assert 'did you mean "echo"?' in problem.fix


@pytest.mark.parametrize(
    ("key", "least", "most", "below", "above"),
    [
        ("timeout_s", 0.001, 60, 0, 60.1),
        ("memory_mb", 1, 512, 0, 513),
        ("fuel", 1, 2**62, 0, 2**62 + 1),
        ("output_kb", 1, 8_192, 0, 8_193),
        ("concurrency", 1, 1_024, 0, 1_025),
    ],
)
def test_a_bound_has_its_bounds(
    arena: Arena, key: str, least: float, most: float, below: float, above: float
) -> None:
    for right in (least, most):
        limits = loaded(arena, limits=f"{{ {key} = {right} }}").limits
        assert getattr(limits, key) == right
    for wrong in (below, above):
        found = problems(arena, limits=f"{{ {key} = {wrong} }}")
        assert found == [("CFG007", f"plugins.0.limits.{key}")]


@pytest.mark.parametrize("text", ["'ab'", f"'{'g' * 64}'", f"'{'0' * 65}'", "''"])
def test_a_sha256_has_64_hexadecimal_digits(arena: Arena, text: str) -> None:
    assert problems(arena, sha256=text) == [("CFG006", "plugins.0.sha256")]


@pytest.mark.parametrize(
    ("secrets", "origins"),
    [
        ("{ k = '${env:KEY}' }", {Origin("https", "a.example", 443)}),
        ("{ k = { value = '${env:KEY}' } }", {Origin("https", "a.example", 443)}),
        (
            "{ k = { value = '${env:KEY}', hosts = ['A.example'] } }",
            {Origin("https", "a.example", 443)},
        ),
    ],
)
def test_a_secret_goes_to_the_one_host_that_is_granted(
    arena: Arena, secrets: str, origins: set[Origin]
) -> None:
    plugin = loaded(arena, capabilities="['store:x', 'http:a.example']", secrets=secrets)

    (secret,) = plugin.secrets
    assert (secret.name, secret.value.reveal(), set(secret.origins)) == ("k", SECRET, origins)
    assert SECRET not in repr(plugin)


def test_a_secret_goes_to_the_hosts_that_are_named(arena: Arena) -> None:
    plugin = loaded(
        arena,
        capabilities="['http:a.example', 'http:b.example', 'http:http://127.0.0.1:8080']",
        secrets="{ k = { value = 'x', hosts = ['http://127.0.0.1:8080', 'b.example'] } }",
    )

    assert {str(origin) for origin in plugin.secrets[0].origins} == {
        "http://127.0.0.1:8080",
        "https://b.example",
    }


@pytest.mark.parametrize(
    ("capabilities", "secrets", "code", "key", "words"),
    [
        ("['store:x']", "{ k = 'v' }", "CFG004", "k", ("no host", '"http:HOST"')),
        (
            "['http:a.example', 'http:http://b.example']",
            "{ k = 'v' }",
            "CFG004",
            "k",
            ("several hosts", "a.example, http://b.example"),
        ),
        (
            "['http:a.example']",
            "{ k = { value = 'v', hosts = ['b.example'] } }",
            "CFG009",
            "k.hosts.0",
            ("http:b.example", 'add "http:b.example"'),
        ),
        (
            "['http:a.example']",
            "{ k = { value = 'v', hosts = ['sub.a.example'] } }",
            "CFG009",
            "k.hosts.0",
            ("http:sub.a.example", 'add "http:sub.a.example"'),
        ),
        (
            "['http:a.example']",
            "{ k = { value = 'v', hosts = ['*.example'] } }",
            "CFG006",
            "k.hosts.0",
            ('"*.example"', "write HOST or SCHEME://HOST:PORT"),
        ),
        ("['http:http://a.example']", "{ k = 'v' }", "CFG006", "k", ("http://a.example", "https")),
        (
            "['http:http://a.example', 'http:b.example']",
            "{ k = { value = 'v', hosts = ['http://a.example'] } }",
            "CFG006",
            "k.hosts.0",
            ("http://a.example", "https"),
        ),
    ],
)
def test_a_secret_without_a_right_place_to_go_is_refused(
    arena: Arena, capabilities: str, secrets: str, code: str, key: str, words: tuple[str, str]
) -> None:
    (problem,) = refused(arena, capabilities=capabilities, secrets=secrets)

    assert (problem.code, problem.key) == (code, f"plugins.0.secrets.{key}")
    assert words[0] in problem.message
    assert words[1] in problem.fix


@pytest.mark.parametrize("name", ["", "a b", "a.b", "1a", "a}", "a" * 65])
def test_a_secrets_name_can_stand_in_a_placeholder(arena: Arena, name: str) -> None:
    found = refused(arena, capabilities="['http:a.example']", secrets=f"{{ '{name}' = 'v' }}")

    assert [problem.code for problem in found] == ["CFG006"]


def test_a_secret_that_cannot_be_followed_is_an_error_unless_the_plugin_is_switched_off(
    arena: Arena,
) -> None:
    hosts, secrets = "['http:a.example']", "{ k = '${env:NOPE}' }"

    found = problems(arena, capabilities=hosts, secrets=secrets)
    assert found == [("CFG010", "plugins.0.secrets.k")]
    assert not loaded(arena, capabilities=hosts, secrets=secrets, enabled="false").secrets


def test_a_literal_secret_is_noted(arena: Arena) -> None:
    config = arena.load(
        table(capabilities="['http:a.example']", secrets="{ k = 'hunter2-hunter2' }")
    )

    noted = [(notice.code, notice.key) for notice in config.notices]
    assert ("literal-secret", "plugins.0.secrets.k") in noted
    assert SECRET not in repr(config)


@pytest.mark.parametrize(
    ("secrets", "shown"),
    [
        ("{ k = 'hunter2-hunter2', x_y = { value = 1 } }", "***"),
        ("{ k = { value = 'hunter2-hunter2', hosts = ['b.example'] } }", "b.example"),
        ("{ k = { value = 'hunter2-hunter2', hots = ['hunter2-hunter2'] } }", "***"),
        ("{ k = ['hunter2-hunter2'] }", "***"),
    ],
)
def test_no_error_shows_a_secret(arena: Arena, secrets: str, shown: str) -> None:
    refusal = arena.refusal(table(capabilities="['http:a.example']", secrets=secrets))

    assert shown in refusal.render()
    assert "hunter2" not in refusal.render()


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("{ a = '${env:KEY}' }", "a"),
        ("{ a = ['x', '${file:key}'] }", "a.1"),
        ("{ a = 1979-05-27 }", "a"),
        ("{ a = 07:32:00 }", "a"),
        ("{ a = inf }", "a"),
        ("{ a = nan }", "a"),
        ("{ a = 9223372036854775808 }", "a"),
    ],
)
def test_what_a_plugin_cannot_be_given_is_refused(arena: Arena, value: str, key: str) -> None:
    assert problems(arena, config=value) == [("CFG006", f"plugins.0.config.{key}")]


def test_what_a_plugin_is_given_has_bounds(arena: Arena) -> None:
    deep = "{ a = " * 20 + "1" + " }" * 20

    assert loaded(arena, config=f"{{ a = '{'x' * (LARGEST_CONFIG - 9)}' }}").config
    too_long = problems(arena, config=f"{{ a = '{'x' * (LARGEST_CONFIG - 8)}' }}")
    assert too_long == [("CFG007", "plugins.0.config")]
    assert [code for code, _ in problems(arena, config=deep)] == ["CFG007"]


def test_a_placeholder_for_the_host_may_be_given_to_a_plugin(arena: Arena) -> None:
    assert loaded(arena, config="{ header = 'Bearer ${secret:k}' }").config


def test_what_looks_like_a_secret_and_is_given_to_the_plugin_is_noted(arena: Arena) -> None:
    config = arena.load(table(config="{ api_key = 'hunter2-hunter2', units = 'metric' }"))

    assert [(notice.code, notice.key) for notice in config.notices] == [
        ("secret-in-config", "plugins.0.config.api_key")
    ]
    assert SECRET not in str(config.notices)


@pytest.mark.requirement("S-003-Config-07")
def test_without_an_agent_the_usual_plugins_are_there_with_what_they_need(arena: Arena) -> None:
    config = arena.load()

    assert [(one.name, one.is_bundled, one.path) for one in config.plugins] == [
        ("echo", True, Path("/shipped/echo/tool.wasm")),
        ("time", True, Path("/shipped/time/tool.wasm")),
    ]
    assert [list(map(str, one.capabilities)) for one in config.plugins] == [
        [],
        ["host_function:clock"],
    ]


def test_without_an_agent_every_plugin_of_the_file_is_listed_too(arena: Arena) -> None:
    arena.write("wasm", "my.wasm")
    off = table(name="'off'", path="'my.wasm'", enabled="false")

    config = arena.load(table(path="'my.wasm'") + off)

    assert config.agents[0].tools == ("weather", "echo", "time", "memory")
    assert [one.name for one in config.plugins] == ["weather", "off", "echo", "time"]


def test_a_usual_plugin_that_the_file_names_otherwise_is_not_there_twice(arena: Arena) -> None:
    config = arena.load(table(name="'says'"))

    assert config.agents[0].tools == ("says", "time", "memory")


def test_a_plugin_of_the_file_replaces_the_usual_one_of_its_name(arena: Arena) -> None:
    arena.write("wasm", "my.wasm")
    mine = table(name="'time'", path="'my.wasm'")
    off = table(name="'echo'", enabled="false")

    config = arena.load(mine + off)

    assert [(one.name, one.is_bundled) for one in config.plugins] == [
        ("time", False),
        ("echo", True),
    ]
    assert config.agents[0].tools == ("time", "memory")


def test_with_an_agent_only_the_plugins_of_the_file_are_there(arena: Arena) -> None:
    assert arena.load("[agent]").plugins == ()
    assert arena.load("[[agents]]\nid = 'a'").plugins == ()


@pytest.mark.parametrize("text", ["plugins = 1", "plugins = [1]", "[plugins]\nname = 'x'"])
def test_plugins_that_are_no_tables_are_refused(arena: Arena, text: str) -> None:
    assert {problem.code for problem in arena.problems(text)} == {"CFG005"}


@pytest.mark.parametrize(("workers", "is_right"), [(0, 0), (1, 1), (16, 1), (17, 0)])
def test_the_sandbox_has_some_workers(arena: Arena, workers: int, is_right: int) -> None:
    text = f"[sandbox]\nworkers = {workers}"

    if is_right:
        assert arena.load(text).sandbox.workers == workers
    else:
        assert [problem.code for problem in arena.problems(text)] == ["CFG007"]


def test_the_sandbox_has_its_defaults(arena: Arena) -> None:
    sandbox = arena.load().sandbox

    assert (sandbox.workers, sandbox.idle_s) == (1, 300.0)
