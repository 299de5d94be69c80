"""Every value in force is shown with where it comes from."""

from dataclasses import replace
from pathlib import Path

from gateway.config.load import Row, effective
from gateway.config.values import Overrides
from tests.config.arena import Arena


def rows(arena: Arena) -> dict[str, Row]:
    return {row.key: row for row in effective(arena.read())}


def test_every_value_says_where_it_comes_from(arena: Arena) -> None:
    arena.write(
        "[gateway]\ntoken = '${env:MINE}'\nport = 7300\n\n[limits]\nmax_iterations = 9\n\n"
        "[agent]\nprovider = 'openai'\nlimits.tool_timeout_s = 5\n"
        "fallback = { provider = 'demo' }\n\n[providers.openai]\nmax_retries = 1\n"
        "[[bindings]]\nagent_id = 'main'\nchannel = 'c'\n"
    )
    environment = {"MINE": "m", "OPENAI_API_KEY": "sk-1", "AGENT_TEMPERATURE": "0.5"}
    arena = replace(arena, environment=environment, overrides=Overrides(Path("/data")))

    found = rows(arena)

    expected = {
        "config_version": (1, "default"),
        "gateway.token": ("***", "config.toml:2"),
        "gateway.port": (7300, "config.toml:3"),
        "gateway.bind": ("127.0.0.1", "default"),
        "gateway.data_dir": ("/data", "command line"),
        "limits.max_iterations": (9, "config.toml:6"),
        "agent.limits.max_iterations": (9, "config.toml:6"),
        "agent.limits.tool_timeout_s": (5.0, "config.toml:10"),
        "agent.limits.token_budget": (50_000, "default"),
        "agent.temperature": (0.5, "environment AGENT_TEMPERATURE"),
        "agent.provider": ("openai", "config.toml:9"),
        "agent.fallback.provider": ("demo", "config.toml:11"),
        "agent.fallback.max_tokens": (4_096, "default"),
        "providers.openai.api_key": ("***", "environment OPENAI_API_KEY"),
        "providers.openai.base_url": ("https://api.openai.com/v1", "preset openai"),
        "providers.openai.max_retries": (1, "config.toml:14"),
        "bindings.0.channel": ("c", "config.toml:17"),
        "queue.max_pending": (1_000, "default"),
    }
    assert {key: (found[key].value, found[key].origin) for key in expected} == expected


def test_a_provider_that_a_key_chose_says_so(arena: Arena) -> None:
    found = rows(replace(arena, environment={"OPENAI_API_KEY": "sk-1"}))

    assert found["agent.provider"].origin == "environment OPENAI_API_KEY"


def test_no_secret_is_shown(arena: Arena) -> None:
    arena.write(
        "[gateway]\ntoken = 'hunter2-1'\n[[tokens]]\nname = 'a'\ntoken = 'hunter2-2'\n"
        "[providers.openai]\napi_key = 'hunter2-3'\nheaders = { X = 'hunter2-4' }\n"
    )

    assert "hunter2" not in repr(rows(arena))


def test_a_plugin_is_shown_as_a_configuration_has_it_and_without_its_secrets(arena: Arena) -> None:
    arena.write("wasm", "w.wasm")
    arena.write(
        "[agent]\n[[plugins]]\nname = 'w'\npath = 'w.wasm'\n"
        "capabilities = ['http:A.example', 'store:x']\n"
        "secrets.one = 'hunter2-1'\n"
        "secrets.two = { value = 'hunter2-2', hosts = ['a.example'] }\n"
        "[plugins.config]\nunits = 'metric'\napi_key = 'hunter2-3'\n"
        "list = [{ token = 'hunter2-4', name = 'n' }]\n"
    )

    found = rows(arena)

    expected = {
        "plugins.0.name": ("w", "config.toml:3"),
        "plugins.0.path": (str(arena.cwd / "w.wasm"), "config.toml:4"),
        "plugins.0.capabilities": (["http:a.example", "store:x"], "config.toml:5"),
        "plugins.0.sha256": (None, "default"),
        "plugins.0.config.units": ("metric", "config.toml:9"),
        "plugins.0.config.api_key": ("***", "config.toml:10"),
        "plugins.0.config.list.0.name": ("n", "config.toml:11"),
        "plugins.0.config.list.0.token": ("***", "config.toml:11"),
        "plugins.0.secrets.one.value": ("***", "config.toml:6"),
        "plugins.0.secrets.one.hosts": (["a.example"], "default"),
        "plugins.0.secrets.two.value": ("***", "config.toml:7"),
        "plugins.0.secrets.two.hosts": (["a.example"], "config.toml:7"),
        "plugins.0.limits.timeout_s": (10.0, "default"),
        "plugins.0.limits.fuel": (None, "default"),
        "plugins.0.enabled": (True, "default"),
        "plugins.0.deny_unused": (False, "default"),
        "sandbox.workers": (1, "default"),
    }
    assert {key: (found[key].value, found[key].origin) for key in expected} == expected
    assert "hunter2" not in repr(found)


def test_the_usual_plugins_are_shown(arena: Arena) -> None:
    found = rows(arena)

    assert found["plugins.1.name"] == Row("plugins.1.name", "time", "default")
    assert found["plugins.1.capabilities"].value == ["host_function:clock"]
