"""Presets are sound, and say what is missing."""

import pytest

from gateway.domain.ids import Secret
from gateway.domain.model import ProviderDef, base_url_problem
from gateway.providers.prices import PRESETS, Quirks, missing_key, quirks_of


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_has_an_address_that_may_be_given_a_key(name: str) -> None:
    assert base_url_problem(PRESETS[name].base_url) is None


def test_the_presets_are_those_of_the_documentation() -> None:
    assert {name: preset.key_env for name, preset in PRESETS.items()} == {
        "anthropic": "ANTHROPIC_API_KEY",
        "openai": "OPENAI_API_KEY",
        "gemini": "GEMINI_API_KEY",
        "openrouter": "OPENROUTER_API_KEY",
        "ollama": None,
    }


def definition(name: str, **changes: object) -> ProviderDef:
    preset = PRESETS[name]
    fields: dict[str, object] = {"wire": preset.wire, "base_url": preset.base_url} | changes
    return ProviderDef(name, **fields)  # type: ignore[arg-type]  # the tests' own short-hand


def test_a_missing_key_is_told_with_the_variable_that_would_hold_it() -> None:
    assert "GEMINI_API_KEY" in (missing_key(definition("gemini")) or "")
    assert missing_key(definition("gemini", api_key=Secret("k"))) is None
    assert missing_key(definition("ollama")) is None


def test_an_address_of_the_operators_own_may_need_no_key() -> None:
    assert missing_key(definition("openai", base_url="http://127.0.0.1:8080/v1")) is None
    assert missing_key(definition("openai", base_url="https://api.openai.com/v1/"))


def test_quirks_belong_to_a_name_on_its_own_wire() -> None:
    assert quirks_of(definition("openai")).max_tokens_key == "max_completion_tokens"
    assert quirks_of(definition("openai", wire="anthropic")) == Quirks()
    assert quirks_of(ProviderDef("mine", "openai", "https://x.example")) == Quirks()
