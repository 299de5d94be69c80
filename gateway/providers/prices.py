"""What calls cost: the operator's own prices first, else a table of public ones, without a network."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal

from gateway.domain.budgets import NANO, Pricing
from gateway.domain.providers import ProviderDef
from gateway.domain.usage import Usage
from gateway.providers.presets import PRESETS

_MOST_UNKNOWN = 1000
LISTED = frozenset({"anthropic", "openai", "gemini", "openrouter"})  # presets with a public table


class PriceTable:
    """Implements the Prices port."""

    def __init__(self, definitions: Mapping[str, ProviderDef]) -> None:
        self._definitions = definitions
        self._unknown: set[tuple[str, str]] = set()  # looking for what is not there is slow

    def cost(
        self, provider: str, model: str, usage: Usage, at: datetime
    ) -> tuple[int, Pricing] | None:
        definition = self._definitions.get(provider)
        if definition is None or (provider, model) in self._unknown:
            return None
        own = definition.prices.get(model)
        if own is not None:
            money = usage.input_tokens * own.input + usage.output_tokens * own.output
            return round(money * NANO / 1_000_000), "config"
        public = _public(definition, model, usage, at)
        if public is None:
            if len(self._unknown) < _MOST_UNKNOWN:
                self._unknown.add((provider, model))
            return None
        return round(public * NANO), "table"

    def warm(self) -> None:
        """Loads the table, which takes a moment: call it in a thread, before it is needed."""
        from genai_prices import Usage, calc_price  # noqa: PLC0415  # slow; the demo needs no prices

        with suppress(LookupError):  # the import alone leaves the table to whoever asks first
            calc_price(Usage(input_tokens=1), "gpt-4o", provider_id="openai")


def _public(definition: ProviderDef, model: str, usage: Usage, at: datetime) -> Decimal | None:
    from genai_prices import Usage as Counts  # noqa: PLC0415  # slow to import
    from genai_prices import calc_price  # noqa: PLC0415  # slow to import

    cached = min(usage.cached_tokens, usage.input_tokens)
    written = min(usage.written_tokens, usage.input_tokens - cached)
    counts = Counts(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )
    with suppress(LookupError):
        name = definition.name
        return calc_price(counts, model, provider_id=name, genai_request_timestamp=at).total_price
    with suppress(LookupError):
        url = definition.base_url
        return calc_price(
            counts, model, provider_api_url=url, genai_request_timestamp=at
        ).total_price
    return None


def is_listed(definition: ProviderDef, model: str) -> bool | None:
    """Whether the public table of a preset knows the model; None where there is no such table."""
    preset = PRESETS.get(definition.name)
    is_own = preset is None or definition.base_url.rstrip("/") != preset.base_url
    if is_own or definition.name not in LISTED:
        return None
    from genai_prices import Usage as Counts  # noqa: PLC0415  # slow to import
    from genai_prices import calc_price  # noqa: PLC0415  # slow to import

    with suppress(LookupError):
        calc_price(Counts(input_tokens=1), model, provider_id=definition.name)
        return True
    return model in definition.prices
