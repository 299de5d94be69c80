"""Every value in force is shown with where it comes from."""

from dataclasses import replace
from pathlib import Path

from gateway.config.effective import Row, effective
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
