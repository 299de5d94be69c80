"""What the environment says by itself: whose key is at hand."""

import pytest

from gateway.config.environment import Choice, default_model, key_variables, usual_choice, value_of
from tests.config.arena import KNOWN


def test_an_empty_variable_is_none() -> None:
    assert value_of({"A": ""}, "A") is None
    assert value_of({"A": "x"}, "A") == "x"


@pytest.mark.requirement("S-003-AgentDef-05")
@pytest.mark.parametrize(
    ("variables", "choice"),
    [
        ([], Choice()),
        (["OPENAI_API_KEY"], Choice("openai", "OPENAI_API_KEY")),
        (["AGENT_GEMINI_API_KEY"], Choice("gemini", "AGENT_GEMINI_API_KEY")),
        (
            ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"],
            Choice("anthropic", "ANTHROPIC_API_KEY", ("OPENAI_API_KEY",)),
        ),
    ],
)
def test_the_first_provider_with_a_key_is_chosen_and_the_others_are_told(
    variables: list[str], choice: Choice
) -> None:
    assert usual_choice(dict.fromkeys(variables, "k"), KNOWN) == choice


def test_the_demo_needs_nothing() -> None:
    assert (Choice().agent_id, default_model("demo", KNOWN)) == ("demo", "demo")
    assert default_model("ollama", KNOWN) is None
    assert key_variables("ollama", None) == ()
