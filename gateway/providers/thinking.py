"""Which models can be asked to think, and why others cannot."""

import re

from gateway.domain.model import Wire
from gateway.providers.prices import PRESETS

LEAST_THINKING = 1024  # tokens of a reply that are thinking, where it has a budget
REASONING_FAMILIES = ("o1", "o3", "o4", "gpt-5", "gpt-6", "gemini-2.5", "gemini-3")
CANNOT_THINK = re.compile(r"claude-(?:2|instant|3-(?:5|opus|sonnet|haiku))")
THINKS_BY_BUDGET = re.compile(
    r"claude-(?:3-7|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?:-\d{8}|-latest|@.*)?$)"
)


def why_no_thinking(provider: str, wire: Wire | None, model: str, max_tokens: int) -> str | None:
    """The reason, where asking to think would change nothing; None where it is asked. `wire` None:
    the demo."""
    if wire is None:
        return "the demo cannot think"
    return _on_messages(model, max_tokens) if wire == "anthropic" else _on_chat(provider, model)


def _on_messages(model: str, max_tokens: int) -> str | None:
    if CANNOT_THINK.search(model):
        return f"{model} cannot think"
    if THINKS_BY_BUDGET.search(model) and max_tokens <= LEAST_THINKING:
        return f"{model} only thinks with max_tokens above {LEAST_THINKING}"
    return None


def _on_chat(provider: str, model: str) -> str | None:
    preset = PRESETS.get(provider)
    by = preset.quirks.thinking_by if preset and preset.wire == "openai" else "nothing"
    if by == "nothing":
        return f"it is not known how {provider} is asked to think"
    if by == "reasoning_effort" and not model.startswith(REASONING_FAMILIES):
        return f"{model} is not known to think"
    return None
