"""Schema, example and documentation say the same."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest

from gateway.config.schema import DIALECT, default_of, json_schema, patterns
from gateway.config.sections import sections_with
from gateway.domain.settings import NEEDED
from tests.config.arena import Arena
from tools import publish_configuration

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "config.example.toml").read_text()
WHOLE_EXAMPLE = re.sub(r"^#(?=[a-z\[])", "", EXAMPLE, flags=re.MULTILINE)
DOCUMENTATION = publish_configuration.FILE.read_text()


def plain(value: object) -> object:
    """A default as TOML and JSON have it."""
    if isinstance(value, tuple | frozenset):
        return [*value]
    return str(value) if isinstance(value, Path) else value


EVERY_KEY = {
    name: NEEDED if key.is_needed else plain(default_of(key))
    for name, key in publish_configuration.keys().items()
}


WHOLE = {
    "delegation.items",
    "providers.NAME.headers",
    "plugins[].config",
    "mcp.servers.NAME.env",
    "mcp.servers.NAME.headers",
    "channels.NAME.config",
    "rules[].do[].set_state",
    "rules[].do[].payload",
}


def flattened(document: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        path = f"{above}{key}"
        named = {
            "providers.example": "providers.NAME",
            "providers.NAME.headers.X-Team": None,
            "plugins[].secrets.api_key": "plugins[].secrets.NAME",
            "providers.NAME.prices.model-1": "providers.NAME.prices.MODEL",
            "budgets.agent.helper": "budgets.agent.ID",
            "mcp.servers.books": "mcp.servers.NAME",
            "mcp.servers.notebook": "mcp.servers.NAME",
            "channels.family": "channels.NAME",
            "channels.NAME.secrets.signing_secret": "channels.NAME.secrets.NAME",
            "channels.NAME.groups.room-7": "channels.NAME.groups.ROOM",
        }
        if path in named:
            path = named[path] or path
        if path in WHOLE:
            yield path, value
        elif isinstance(value, dict):
            yield from flattened(value, f"{path}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                yield from flattened(item, f"{path}[].")
        else:
            yield path, value


def test_the_example_has_no_key_that_does_not_exist() -> None:
    assert {path for path, _ in flattened(tomllib.loads(WHOLE_EXAMPLE))} <= set(EVERY_KEY)


def test_what_the_example_sets_is_the_default() -> None:
    for path, value in flattened(tomllib.loads(EXAMPLE)):
        assert (path, value) == (path, EVERY_KEY[path])


def test_the_example_changes_nothing(arena: Arena) -> None:
    config = arena.load(EXAMPLE)

    usual = arena.load("[agent]")
    assert config == usual
    assert config.notices == ()


def test_the_whole_example_is_valid(arena: Arena) -> None:
    arena.secret("gateway_token", "one-token")
    arena.secret("phone_token", "another-token")
    arena.write("# Me", "souls/main.md")
    arena.write("# Librarian", "souls/librarian.md")
    arena.write("{soul}", "prompts/main.md")
    arena.write("wasm", "plugins/weather.wasm")
    arena.write("wasm", "plugins/chat.wasm")
    arena.write("", "rules/more.toml")
    arena = replace(
        arena,
        environment={
            "EXAMPLE_API_KEY": "k",
            "OPENAI_API_KEY": "o",
            "ANTHROPIC_API_KEY": "a",
            "WEATHER_KEY": "w",
            "CHAT_SECRET": "s",
            "BOOKS_TOKEN": "b",
        },
    )

    config = arena.load(WHOLE_EXAMPLE)

    assert [agent.id for agent in config.agents] == ["main", "helper"]
    assert config.agents[0].fallback is not None
    assert [grant.name for grant in config.tokens] == ["phone"]
    assert [plugin.name for plugin in config.plugins] == ["weather", "notes", "chat"]
    assert [server.name for server in config.mcp.servers] == ["books", "notebook"]
    assert [channel.name for channel in config.channels] == ["family"]
    assert len(config.bindings) == 1
    assert config.rules[-1].id == "slow-down"
    assert config.notices == ()


def test_the_tables_of_the_documentation_are_made_of_the_sections() -> None:
    assert publish_configuration.page(DOCUMENTATION) == DOCUMENTATION
    assert publish_configuration.homeless(DOCUMENTATION) == []


def test_every_key_is_described() -> None:
    for path, key in patterns().items():
        assert key.setting.help.endswith("."), path


def test_the_json_schema_is_one_and_describes_every_key() -> None:
    schema = json_schema()

    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == DIALECT
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        for name, key in section["properties"].items():
            section_of = key.get("$ref", "").rpartition("/")[2]
            assert key.get("description") or schema["$defs"][section_of]["description"], name
        assert section["additionalProperties"] is False


def test_the_json_schema_accepts_the_whole_example() -> None:
    check = jsonschema_rs.validator_for(json_schema())

    assert check.is_valid(tomllib.loads(WHOLE_EXAMPLE))


@pytest.mark.parametrize(
    "text",
    [
        "prot = 1",
        "gateway.port = 70000",
        "gateway.port = 'x'",
        "context.token_budget = 'atuo'",
        "context.token_budget = 3999",
        "agent.fallback.model = 'x'",
        "agent.fallback.fallback = 1",
        "[[agents]]\nmodel = 'x'",
        "[[agents]]\nid = 'a_b'",
        "store.url = 'postgres'",
        "config_version = 2",
        "[[tokens]]\nname = 'a'",
        "[[plugins]]\nname = 'a'",
        "[[plugins]]\nname = 'a__b'\npath = 'bundled:echo'",
        "[[plugins]]\nname = 'a'\npath = 'bundled:echo'\nsecrets.x = 1",
        "[[plugins]]\nname = 'a'\npath = 'bundled:echo'\nsecrets.x.hosts = ['a.example']",
        "[[plugins]]\nname = 'a'\npath = 'bundled:echo'\nlimits.timeout_s = 61",
        "sandbox.workers = 17",
        "[channels.a]",
        "channels.a = { plugin = 'echo', transport = 'pigeon' }",
        "channels.a = { plugin = 'echo', dm_policy = 'all' }",
        "channels.a = { plugin = 'echo', max_age_s = 59 }",
        "channels.a = { plugin = 'echo', groups.x = { allow = [] } }",
    ],
)
def test_the_json_schema_refuses_what_the_gateway_refuses(arena: Arena, text: str) -> None:
    check = jsonschema_rs.validator_for(json_schema())

    assert not check.is_valid(tomllib.loads(text))
    assert arena.problems(text)


@pytest.mark.parametrize("text", ["[[schedules]]"])
def test_what_is_not_built_is_not_configurable(arena: Arena, text: str) -> None:
    assert {problem.code for problem in arena.problems(text)} == {"CFG002"}


def test_a_key_knows_its_sections() -> None:
    assert sections_with("port") == ("[gateway]",)
    assert sections_with("soul_path") == ("[agent]", "[[agents]]")
    assert sections_with("wire") == ()
