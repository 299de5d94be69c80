"""What calls cost: own prices, then public ones, and never an exception."""

import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from genai_prices.data import providers

from gateway.domain.budgets import NANO
from gateway.domain.messages import Usage
from gateway.domain.model import Price, ProviderDef
from gateway.providers.prices import PriceTable, may_be_priced

AT = datetime(2026, 6, 1, tzinfo=UTC)
MILLION = Usage(1_000_000, 1_000_000)


def table(name: str = "openai", url: str = "http://127.0.0.1:1/v1") -> PriceTable:
    return PriceTable({name: ProviderDef(name, "openai", url, prices={"own": Price(0.5, 1.5)})})


def test_own_prices_come_first() -> None:
    own = table()

    assert own.cost("openai", "own", MILLION, AT) == (2 * NANO, "config")
    assert own.cost("openai", "own", Usage(1, 0), AT) == (500, "config")


def test_public_prices_are_known_without_a_network() -> None:
    assert table().cost("openai", "gpt-4o", MILLION, AT) == (round(12.5 * NANO), "table")
    cached = Usage(1_000_000, 0, cached_tokens=1_000_000)
    assert table().cost("openai", "gpt-4o", cached, AT) == (round(1.25 * NANO), "table")


ASKED_FIRST = """
import sys
from tests.providers.test_prices import AT, MILLION, table
prices = table()
prices.warm()
known = set(sys.modules)
assert prices.cost("openai", "gpt-4o", MILLION, AT) is not None
assert prices.cost("openai", "nothing", MILLION, AT) is None
print(sorted(set(sys.modules) - known))
"""


def test_whoever_asks_first_after_it_was_warmed_loads_nothing() -> None:
    command = [sys.executable, "-c", ASKED_FIRST]
    ran = subprocess.run(command, capture_output=True, timeout=60, check=True)

    assert ran.stdout.split() == [b"[]"]


def test_what_is_written_into_a_cache_has_its_own_price() -> None:
    prices = table("anthropic", "https://api.anthropic.com")
    plain, read, written = Usage(10**5), Usage(10**5, 0, 10**5), Usage(10**5, written_tokens=10**5)

    costs = [
        prices.cost("anthropic", "claude-sonnet-4-5", one, AT) for one in (plain, read, written)
    ]

    assert costs == [(amount * NANO // 1000, "table") for amount in (300, 30, 375)]


def test_a_provider_is_known_by_its_address_too() -> None:
    mine = table("mine", "https://api.openai.com/v1")

    assert mine.cost("mine", "gpt-4o", MILLION, AT) == (round(12.5 * NANO), "table")


@pytest.mark.requirement("S-003-Record-03")
@pytest.mark.parametrize(("provider", "model"), [("openai", "no-such"), ("other", "m"), ("", "")])
def test_what_nobody_knows_has_no_price(provider: str, model: str) -> None:
    prices = table()

    assert [prices.cost(provider, model, MILLION, AT) for _ in range(2)] == [None, None]


@pytest.mark.parametrize(
    "url", ["http://localhost:11434/v1", "http://10.0.0.7:1/v1", "http://[::1]/v1"]
)
def test_of_the_public_table_no_local_service_has_a_price_but_by_a_known_name(url: str) -> None:
    assert not may_be_priced(ProviderDef("mock", "openai", url))
    assert may_be_priced(ProviderDef("mock", "openai", "https://api.example.com/v1"))
    for provider in providers:
        assert may_be_priced(ProviderDef(provider.id, "openai", url))
        assert not re.match(provider.api_pattern, url)
        rule = repr(provider.provider_match)
        words = re.findall(r"'([^']+)'", rule)
        for name in ["-".join(words)] if "ClauseAnd" in rule else words:
            assert may_be_priced(ProviderDef(f"my-{name}", "openai", url)), name


LOCAL = """
import sys
from datetime import UTC, datetime
from gateway.domain.messages import Usage
from gateway.domain.model import ProviderDef
from gateway.providers.prices import PriceTable
prices = PriceTable({"mock": ProviderDef("mock", "openai", "http://127.0.0.1:1/v1")})
prices.warm()
assert prices.cost("mock", "m", Usage(1), datetime(2026, 6, 1, tzinfo=UTC)) is None
assert "genai_prices" not in sys.modules
"""


def test_local_models_load_no_table() -> None:
    subprocess.run([sys.executable, "-c", LOCAL], check=True, timeout=30)
