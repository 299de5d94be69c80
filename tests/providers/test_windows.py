"""A model's sizes are found by its name, whatever stands around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.prices import context_window, output_limit


@pytest.mark.requirement("S-002-LLM-09")
@pytest.mark.parametrize(
    ("model", "window"),
    [
        # as the table has them
        ("deepseek/deepseek-chat", 64_000),
        ("deepseek/deepseek-r1", 64_000),
        ("anthropic/claude-3-opus", 200_000),
        ("anthropic/claude-sonnet-4", 200_000),
        ("gemini-2.0-flash-exp", 1_000_000),
        ("openai/gpt-4-turbo", 128_000),
        ("openai/o1", 200_000),
        ("meta-llama/llama-3.3-70b", 131_072),
        # without their suffixes
        ("anthropic/claude-sonnet-4:thinking", 200_000),
        ("deepseek/deepseek-r1:free", 64_000),
        ("gpt-4-turbo-2024-04-09", 128_000),
        ("claude-3-5-sonnet-20241022", 200_000),
        ("claude-3-5-haiku@20241022", 200_000),
        ("meta-llama/llama-3.3-70b-instruct", 131_072),
        ("gemini-2.5-pro-preview", 1_048_576),
        # as a part of a longer name
        ("us.anthropic.claude-3-haiku-20240307-v1", 200_000),
        ("my-gpt-4o-deployment", 128_000),
        ("deepseek-r1-distill-llama", 64_000),
        # by family
        ("claude-opus-9", 200_000),
        ("gpt-5.9-ultra", 400_000),
        ("gemini-9-pro", 1_000_000),
        ("qwen3-235b", 131_072),
        ("llama-3-8b", 8_192),
        # unknown
        ("nobody/knows-this", 128_000),
        ("", 128_000),
        # the longer name wins, and a name is no part of a word
        ("gpt-4-32k", 32_768),
        ("gpt-4o", 128_000),
        ("GPT-4O-mini", 128_000),
        ("gpt-4.1-mini-2025-04-14", 1_047_576),
        ("turbo1", 128_000),
    ],
)
def test_a_window_is_found(model: str, window: int) -> None:
    assert context_window(model) == window


@pytest.mark.requirement("S-003-AgentDef-06")
@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("gpt-4o", 16_384),
        ("openai/gpt-4o-2024-11-20", 16_384),
        ("claude-sonnet-4-5-20250929", 64_000),
        ("claude-opus-9", None),
        ("my-gpt-4o-deployment", None),
        ("unknown", None),
    ],
)
def test_an_output_limit_is_known_for_the_very_model_only(model: str, limit: int | None) -> None:
    assert output_limit(model) == limit


@given(st.text())
def test_any_name_has_a_window(model: str) -> None:
    assert context_window(model) >= 8_192
    assert output_limit(model) is None or context_window(model)
