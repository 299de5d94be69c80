"""How much a model can read and write, by its name: exact, without suffix, part of it, family."""

import re
from functools import lru_cache

DEFAULT_WINDOW = 128_000


def _by_name(groups: dict[int, str]) -> dict[str, int]:
    return {name: size for size, names in groups.items() for name in names.split()}


# Names without the provider in front, without dates and variants behind.
_WINDOWS = _by_name(
    {
        8_192: "gpt-4",
        16_385: "gpt-3.5-turbo",
        32_768: "gpt-4-32k",
        64_000: "deepseek-chat deepseek-r1",
        100_000: "claude-2 claude-2.0",
        128_000: (
            "gpt-4-0125 gpt-4-1106 gpt-4-turbo gpt-4-vision gpt-4o gpt-4o-mini o1-mini o1-preview"
        ),
        131_072: "llama-3.3-70b",
        200_000: (
            "claude-2.1 claude-3-opus claude-3-sonnet claude-3-haiku claude-3-5-sonnet "
            "claude-3-5-haiku claude-3-7-sonnet claude-sonnet-4 claude-opus-4 o1 o3 o3-mini "
            "o4-mini"
        ),
        400_000: "gpt-5 gpt-5-mini gpt-5-nano",
        1_000_000: (
            "claude-opus-4-8 claude-opus-5 gemini-1.5-flash gemini-2.0-flash gemini-2.0-flash-exp"
        ),
        1_047_576: "gpt-4.1 gpt-4.1-mini gpt-4.1-nano",
        1_048_576: "gemini-2.5-pro gemini-2.5-flash",
        2_000_000: "gemini-1.5-pro",
    }
)

# What a name begins with, for models that nobody has listed.
_FAMILIES = _by_name(
    {
        8_192: "llama",
        32_000: "demo",
        32_768: "qwen mixtral",
        64_000: "deepseek",
        128_000: "gemma gpt mistral kimi glm",
        131_072: "llama-3.1 llama-3.2 llama-3.3 qwen3",
        200_000: "claude o1 o3 o4",
        400_000: "gpt-5",
        1_000_000: "gemini llama-4",
        1_047_576: "gpt-4.1",
    }
)

_OUTPUTS = _by_name(
    {
        4_096: "claude-3-opus claude-3-sonnet claude-3-haiku gpt-3.5-turbo gpt-4-turbo",
        8_192: "claude-3-5-sonnet claude-3-5-haiku gemini-2.0-flash",
        16_384: "gpt-4o gpt-4o-mini",
        32_000: "claude-opus-4 claude-opus-4-1",
        32_768: "gpt-4.1 gpt-4.1-mini gpt-4.1-nano",
        64_000: "claude-opus-4-5 claude-sonnet-4 claude-sonnet-4-5 claude-haiku-4-5",
        65_536: "gemini-2.5-pro gemini-2.5-flash",
        100_000: "o1 o3 o3-mini o4-mini",
        128_000: "claude-opus-4-8 claude-opus-5 gpt-5 gpt-5-mini gpt-5-nano",
    }
)

# `:free`, `:thinking`; `@20250101`, `-20250101`, `-2025-01-01`, `-001`; `-latest`, `-preview`.
_SUFFIX = re.compile(
    r":.*$|@.*$|-\d{8}$|-\d{4}-\d{2}-\d{2}$|-\d{3}$|-(?:latest|preview|exp|instruct|chat|it)$"
)


@lru_cache(maxsize=256)
def context_window(model: str) -> int:
    """Tokens that the model can read at once; 128000 if nothing is known of it."""
    name = _bare(model)
    for candidate in (name, _without_suffixes(name)):
        if candidate in _WINDOWS:
            return _WINDOWS[candidate]
    if parts := [known for known in _WINDOWS if _is_part(known, name)]:
        return _WINDOWS[max(parts, key=len)]
    families = [family for family in _FAMILIES if name.startswith(family)]
    return _FAMILIES[max(families, key=len)] if families else DEFAULT_WINDOW


@lru_cache(maxsize=256)
def output_limit(model: str) -> int | None:
    """The most tokens that this model writes in one reply; None where that is not known.

    Only the very model counts, not its family: a wrong limit would refuse a right configuration.
    """
    name = _bare(model)
    return _OUTPUTS.get(name) or _OUTPUTS.get(_without_suffixes(name))


def _bare(model: str) -> str:
    """Without the route in front (`openrouter/anthropic/claude-x`), in lower case."""
    return model.strip().lower().rpartition("/")[2]


def _without_suffixes(name: str) -> str:
    while (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    return name


def _is_part(known: str, name: str) -> bool:
    """Whether the known name stands in this one as whole words."""
    return re.search(rf"(?<![a-z0-9]){re.escape(known)}(?![a-z0-9.])", name) is not None
