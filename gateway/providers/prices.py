"""Known facts about models and providers by name: prices, window sizes, output limits, thinking, presets."""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from gateway.domain.budgets import NANO, Pricing
from gateway.domain.messages import Usage
from gateway.domain.model import ProviderDef, Wire

DEFAULT_WINDOW = 128_000


def _sizes_in(table: Mapping[str, list[str]]) -> dict[str, int]:
    return {name: int(tokens) for tokens, names in table.items() for name in names}


_KNOWN = tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8"))
_WINDOWS = _sizes_in(_KNOWN["windows"])
_FAMILIES = _sizes_in(_KNOWN["families"])
_OUTPUTS = _sizes_in(_KNOWN["outputs"])

# `:free`, `:thinking`; `@20250101`, `-20250101`, `-2025-01-01`, `-001`; `-latest`, `-preview`.
_SUFFIX = re.compile(
    r":.*$|@.*$|-\d{8}$|-\d{4}-\d{2}-\d{2}$|-\d{3}$|-(?:latest|preview|exp|instruct|chat|it)$"
)


@lru_cache(maxsize=256)
def context_window(model: str) -> int:
    """Returns the context window of a model in tokens; DEFAULT_WINDOW if it is unknown."""
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
    """Returns the most tokens of one reply of a model; None if unknown.

    Families do not count, because a wrong limit would refuse a valid configuration.
    """
    name = _bare(model)
    return _OUTPUTS.get(name) or _OUTPUTS.get(_without_suffixes(name))


def _bare(model: str) -> str:
    """Returns the name in lower case without its route (`openrouter/anthropic/claude-x`)."""
    return model.strip().lower().rpartition("/")[2]


def _without_suffixes(name: str) -> str:
    while (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    return name


def _is_part(known: str, name: str) -> bool:
    """True if the name contains the known name as whole words."""
    whole = rf"(?<![a-z0-9]){re.escape(known)}(?![a-z0-9.])"
    return known in name and re.search(whole, name) is not None  # `in` avoids slow compilations


ThinkingBy = Literal["nothing", "reasoning_effort", "reasoning_enabled"]


@dataclass(frozen=True, slots=True)
class Quirks:
    """Differences between servers of one wire."""

    stream_usage: bool = True  # accepts stream_options.include_usage
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    thinking_by: ThinkingBy = "nothing"
    foreign_signature: str | None = (
        None  # sent with calls of other models if a signature is required
    )
    unknown_model: str = ""  # advice to the operator about an unknown {model}
    unreachable: str = ""  # advice to the operator about a server that cannot be reached


@dataclass(frozen=True, slots=True)
class ProviderPreset:
    """A provider that needs only a key; `key_env` None: no key."""

    name: str
    wire: Wire
    base_url: str
    key_env: str | None = None
    quirks: Quirks = Quirks()


PRESETS = {
    name: ProviderPreset(name, **{**fields, "quirks": Quirks(**fields.get("quirks", {}))})
    for name, fields in _KNOWN["presets"].items()
}
# The models of a start without a configuration; ollama offers the models that were pulled.
DEFAULT_MODELS: Mapping[str, str] = _KNOWN["default_models"]


def quirks_of(definition: ProviderDef) -> Quirks:
    """Returns the quirks of the preset of this name, also if the operator set another address."""
    preset = PRESETS.get(definition.name)
    return preset.quirks if preset and preset.wire == definition.wire else Quirks()


def missing_key(definition: ProviderDef) -> str | None:
    """Returns the problem if the provider needs a key and has none; else None."""
    preset = PRESETS.get(definition.name)
    if definition.api_key is not None or preset is None or preset.key_env is None:
        return None
    if definition.base_url.rstrip("/") != preset.base_url:
        return None
    return (
        f"no key is configured; set {preset.key_env} in the environment, "
        f"or api_key in [providers.{definition.name}]"
    )


DEMO = "demo"  # runs in this process and costs nothing
_MAX_UNKNOWN = 1000
LISTED = frozenset({"anthropic", "openai", "gemini", "openrouter"})  # presets with a public table
# A provider whose name has none of these can have public prices by its address only.
_PRICED = re.compile(
    "amazon|anthropic|arcee|avian|aws|azure|baseten|bedrock|cerebras|cloudflare|cohere|copilot|cursor|"
    "databricks|deepseek|doubleword|elevenlabs|fireworks|gemini|google|groq|huggingface|meta|minimax|"
    "mistral|modal|moonshot|novita|openai|openrouter|ovhcloud|perplexity|quicksilverpro|together|"
    "typesafe|vertex|voyage|x-ai|xai|zai|zhipuai",
    re.IGNORECASE,
)


class PriceTable:
    """Implements the Prices port."""

    def __init__(self, definitions: Mapping[str, ProviderDef]) -> None:
        self._definitions = definitions
        self._unknown: set[tuple[str, str]] = set()  # a cache, because a failed search is slow

    def cost(
        self, provider: str, model: str, usage: Usage, at: datetime
    ) -> tuple[int, Pricing] | None:
        definition = self._definitions.get(provider)
        if definition is None and provider == DEMO:
            return 0, "table"
        if definition is None or (provider, model) in self._unknown:
            return None
        own = definition.prices.get(model)
        if own is not None:
            money = usage.input_tokens * own.input + usage.output_tokens * own.output
            return round(money * NANO / 1_000_000), "config"
        public = _public(definition, model, usage, at) if may_be_priced(definition) else None
        if public is None:
            if len(self._unknown) < _MAX_UNKNOWN:
                self._unknown.add((provider, model))
            return None
        return round(public * NANO), "table"

    def warm(self) -> None:
        """Loads the public table if a provider may need it. It is slow and takes megabytes: call it in a
        thread, early."""
        if any(map(may_be_priced, self._definitions.values())):
            _listed("gpt-4o", Usage(1), provider_id="openai")


def may_be_priced(definition: ProviderDef) -> bool:
    """True unless the provider has an unknown name and the address localhost or an IP address."""
    if _PRICED.search(definition.name):
        return True
    host = urlsplit(definition.base_url).hostname or ""
    return host != "localhost" and ":" not in host and not host.replace(".", "").isdigit()


def is_priced(definition: ProviderDef, model: str, now: datetime) -> bool:
    """True if the model has a price, which may be 0."""
    table = PriceTable({definition.name: definition})
    return table.cost(definition.name, model, Usage(1, 1), now) is not None


def _public(definition: ProviderDef, model: str, usage: Usage, at: datetime) -> Decimal | None:
    price = _listed(model, usage, provider_id=definition.name, genai_request_timestamp=at)
    if price is not None:
        return price
    url = definition.base_url
    return _listed(model, usage, provider_api_url=url, genai_request_timestamp=at)


def _listed(model: str, usage: Usage, **where: Any) -> Decimal | None:
    """Returns the price from the public table; None for an unknown model."""
    import genai_prices  # noqa: PLC0415  # its import takes as long as a whole start

    cached = min(usage.cached_tokens, usage.input_tokens)
    counts = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=cached,
        cache_write_tokens=min(usage.written_tokens, usage.input_tokens - cached),
    )
    with suppress(LookupError):
        return genai_prices.calc_price(counts, model, **where).total_price
    return None


def is_listed(definition: ProviderDef, model: str) -> bool | None:
    """True if the public table of a preset has the model; None if the provider has no public table."""
    preset = PRESETS.get(definition.name)
    is_own = preset is None or definition.base_url.rstrip("/") != preset.base_url
    if is_own or definition.name not in LISTED:
        return None
    found = _listed(model, Usage(1), provider_id=definition.name)
    return found is not None or model in definition.prices


MIN_THINKING = 1024  # tokens, of a thinking budget
REASONING_FAMILIES = ("o1", "o3", "o4", "gpt-5", "gpt-6", "gemini-2.5", "gemini-3")
CANNOT_THINK = re.compile(r"claude-(?:2|instant|3-(?:5|opus|sonnet|haiku))")
THINKS_BY_BUDGET = re.compile(
    r"claude-(?:3-7|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?:-\d{8}|-latest|@.*)?$)"
)


def why_no_thinking(provider: str, wire: Wire | None, model: str, max_tokens: int) -> str | None:
    """Returns why a thinking request would have no effect; None if it has one. `wire` None: the demo."""
    if wire is None:
        return "the demo cannot think"
    if wire == "openai":
        return _why_not_on_chat(provider, model)
    if CANNOT_THINK.search(model):
        return f"{model} cannot think"
    if THINKS_BY_BUDGET.search(model) and max_tokens <= MIN_THINKING:
        return f"{model} only thinks with max_tokens above {MIN_THINKING}"
    return None


def _why_not_on_chat(provider: str, model: str) -> str | None:
    preset = PRESETS.get(provider)
    by = preset.quirks.thinking_by if preset and preset.wire == "openai" else "nothing"
    if by == "nothing":
        return f"{provider} has no known way to request thinking"
    if by == "reasoning_effort" and not model.startswith(REASONING_FAMILIES):
        return f"{model} is not known to think"
    return None
