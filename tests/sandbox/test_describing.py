"""What a plugin says of itself is checked, cut to size, and has no name that is not its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channels.adapter_json import read_description
from gateway.domain.plugins import PluginDef
from gateway.sandbox.plugins import DescribedPlugin, parse_description

PLUGIN = PluginDef("shop", Path("shop.wasm"))
BUNDLED = PluginDef("shop", Path("shop.wasm"), is_bundled=True)


def said(answer: object, plugin: PluginDef = PLUGIN) -> DescribedPlugin:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return parse_description(plugin, "tool", text, read_description)


def a_plugin(*tools: dict[str, Any], **more: object) -> dict[str, object]:
    return {"name": "shop", "tools": list(tools) or [{"name": "buy"}], **more}


@pytest.mark.requirement("S-003-Plugin-04", "S-000-Tool-02", "S-000-Tool-03", "S-000-Tool-05")
def test_a_good_answer_becomes_tools() -> None:
    schema = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    tool = {"name": "buy", "description": "Buys.", "parameters": schema, "category": "web"}
    found = said(a_plugin({**tool, "agent_scope": ["oracle"]}, version="2", description="A shop."))

    assert (found.version, found.description) == ("2", "A shop.")
    assert found.names == {"shop__buy": "buy"}
    (spec,) = found.tools
    assert (spec.name, spec.description, spec.family) == ("shop__buy", "Buys.", "shop")
    assert (spec.category, spec.agent_scope) == ("web", ("oracle",))
    assert json.loads(spec.parameters) == schema


@pytest.mark.requirement("S-000-Tool-01")
@pytest.mark.parametrize(
    ("own", "plugin", "name"),
    [
        ("shop", PLUGIN, "shop"),
        ("vault_read", PLUGIN, "shop__vault_read"),
        ("vault_read", BUNDLED, "vault_read"),
        ("__", PLUGIN, "shop____"),
    ],
)
def test_no_plugin_takes_the_name_of_anothers_tool(own: str, plugin: PluginDef, name: str) -> None:
    assert [tool.name for tool in said(a_plugin({"name": own}), plugin).tools] == [name]


HOSTILE = {
    "nothing": "",
    "words": "a shop",
    "list": "[]",
    "null": "null",
    "number": "1e999",
    "depth": '{"name": "x", "tools": ' + "[" * 100_000,
    "deep parameters": json.dumps(a_plugin()).replace(
        '"buy"', '"buy", "parameters": ' + '{"a":' * 5_000 + "1" + "}" * 5_000
    ),
    "large": json.dumps(a_plugin(description="x" * 300_000)),
    "no tools": {"name": "shop", "tools": []},
    "a million tools": '{"name":"shop","tools":[' + "{}," * 50_000 + "{}]}",
    "65 tools": a_plugin(*({"name": f"t{n}"} for n in range(65))),
    "tools are a number": {"name": "shop", "tools": 1},
    "tools are a dict": {"name": "shop", "tools": {"buy": {}}},
    "name is a list": {"name": [], "tools": [{"name": "buy"}]},
    "version is a number": a_plugin(version=2),
    "long description": a_plugin({"name": "buy", "description": "x" * 4097}),
    "parameters are a text": a_plugin({"name": "buy", "parameters": "{}"}),
    "scope is a text": a_plugin({"name": "buy", "agent_scope": "oracle"}),
    "the same tool twice": a_plugin({"name": "buy"}, {"name": "buy"}),
    "surrogate": '{"name": "shop", "description": "\\ud800", "tools": [{"name": "buy"}]}',
}


@pytest.mark.parametrize("answer", HOSTILE)
def test_a_hostile_answer_is_refused_on_one_short_line(answer: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # reason: each has words of its own
        said(HOSTILE[answer])

    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a\n",
        "a\0",
        "a.b",
        "a:b",
        "a/b",
        "../a",
        "é",
        "ａ",
        "a\u200b",
        "x" * 65,
        "\x1b[m",
    ],
)
def test_a_name_that_could_be_read_in_two_ways_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="String should match pattern"):
        said(a_plugin({"name": name}))


@given(st.text())
def test_no_description_moves_a_cursor(text: str) -> None:
    text = text.encode(errors="replace").decode()[:500]
    found = said(
        a_plugin({"name": "buy", "description": text, "category": text[:64]}, description=text)
    )

    shown = found.description + found.tools[0].description + (found.tools[0].category or "")
    assert all(c.isprintable() or c == "\n" for c in shown)
