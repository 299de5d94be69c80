"""What the rooms know, as the configuration is told it."""

import tomllib
from pathlib import Path

from gateway.cli.configuration import known_names
from gateway.config.sections import parse_capability
from gateway.domain.plugins import HttpGrant
from gateway.providers.prices import DEFAULT_MODELS, PRESETS


def test_every_preset_is_known_and_one_that_needs_a_key_has_a_model_to_start_with() -> None:
    presets = known_names().presets

    assert set(presets) == set(PRESETS)
    assert set(DEFAULT_MODELS) == {name for name, one in presets.items() if one.key_variable}


def test_every_bundled_plugin_is_known_with_what_it_needs() -> None:
    bundled = known_names().bundled

    folder = Path(__file__).parents[2] / "plugins"
    assert set(bundled) == {path.parent.name for path in folder.glob("*/plugin.toml")}
    for name, plugin in bundled.items():
        assert plugin.file == folder / name / "tool.wasm"
        assert [str(parse_capability(text)) for text in plugin.needs] == list(plugin.needs)
        about = tomllib.loads(plugin.file.with_name("plugin.toml").read_text())
        assert name == "fetch" or list(plugin.needs) == about["capabilities"]


def test_the_plugins_of_a_start_without_an_agent_reach_no_network() -> None:
    usual = {name: one for name, one in known_names().bundled.items() if one.is_usual}

    assert set(usual) == {"echo", "calc", "time", "notes"}
    granted = [parse_capability(text) for one in usual.values() for text in one.needs]
    assert not [one for one in granted if isinstance(one, HttpGrant)]
