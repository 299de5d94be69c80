"""How much a model can read and write, by its name: exact, without suffix, part of it, family."""

import re
from functools import lru_cache

DEFAULT_WINDOW = 128_000

# Names without the provider in front, without dates and variants behind.
_WINDOWS: dict[str, int] = {
    "claude-2": 100_000,
    "claude-2.0": 100_000,
    "claude-2.1": 200_000,
    "claude-3-opus": 200_000,
    "claude-3-sonnet": 200_000,
    "claude-3-haiku": 200_000,
    "claude-3-5-sonnet": 200_000,
    "claude-3-5-haiku": 200_000,
    "claude-3-7-sonnet": 200_000,
    "claude-sonnet-4": 200_000,
    "claude-opus-4": 200_000,
    "claude-opus-4-8": 1_000_000,
    "claude-opus-5": 1_000_000,
    "deepseek-chat": 64_000,
    "deepseek-r1": 64_000,
    "gemini-1.5-pro": 2_000_000,
    "gemini-1.5-flash": 1_000_000,
    "gemini-2.0-flash": 1_000_000,
    "gemini-2.0-flash-exp": 1_000_000,
    "gemini-2.5-pro": 1_048_576,
    "gemini-2.5-flash": 1_048_576,
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-32k": 32_768,
    "gpt-4-0125": 128_000,
    "gpt-4-1106": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4-vision": 128_000,
    "gpt-4o": 128_000,
    "gpt-4o-mini": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4.1-mini": 1_047_576,
    "gpt-4.1-nano": 1_047_576,
    "gpt-5": 400_000,
    "gpt-5-mini": 400_000,
    "gpt-5-nano": 400_000,
    "llama-3.3-70b": 131_072,
    "o1": 200_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o3": 200_000,
    "o3-mini": 200_000,
    "o4-mini": 200_000,
}

# What a name begins with, most telling first, for models that nobody has listed.
_FAMILIES: tuple[tuple[str, int], ...] = (
    ("claude", 200_000),
    ("gemini", 1_000_000),
    ("gemma", 128_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-5", 400_000),
    ("gpt", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("deepseek", 64_000),
    ("llama-3.1", 131_072),
    ("llama-3.2", 131_072),
    ("llama-3.3", 131_072),
    ("llama-4", 1_000_000),
    ("llama", 8_192),
    ("qwen3", 131_072),
    ("qwen", 32_768),
    ("mistral", 128_000),
    ("mixtral", 32_768),
    ("kimi", 128_000),
    ("glm", 128_000),
    ("demo", 32_000),
)

_OUTPUTS: dict[str, int] = {
    "claude-3-opus": 4_096,
    "claude-3-sonnet": 4_096,
    "claude-3-haiku": 4_096,
    "claude-3-5-sonnet": 8_192,
    "claude-3-5-haiku": 8_192,
    "claude-opus-4": 32_000,
    "claude-opus-4-1": 32_000,
    "claude-opus-4-5": 64_000,
    "claude-opus-4-8": 128_000,
    "claude-opus-5": 128_000,
    "claude-sonnet-4": 64_000,
    "claude-sonnet-4-5": 64_000,
    "claude-haiku-4-5": 64_000,
    "gemini-2.0-flash": 8_192,
    "gemini-2.5-pro": 65_536,
    "gemini-2.5-flash": 65_536,
    "gpt-3.5-turbo": 4_096,
    "gpt-4-turbo": 4_096,
    "gpt-4o": 16_384,
    "gpt-4o-mini": 16_384,
    "gpt-4.1": 32_768,
    "gpt-4.1-mini": 32_768,
    "gpt-4.1-nano": 32_768,
    "gpt-5": 128_000,
    "gpt-5-mini": 128_000,
    "gpt-5-nano": 128_000,
    "o1": 100_000,
    "o3": 100_000,
    "o3-mini": 100_000,
    "o4-mini": 100_000,
}

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
    parts = [known for known in _WINDOWS if _is_part(known, name)]
    if parts:
        return _WINDOWS[max(parts, key=len)]
    for family, window in _FAMILIES:
        if name.startswith(family):
            return window
    return DEFAULT_WINDOW


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
