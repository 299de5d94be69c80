"""Budgets for tests: prices that are known by heart, reservations and records to put anywhere."""

from dataclasses import dataclass
from datetime import datetime

from gateway.domain.budgets import Amount, Payer, Pricing, Reservation, TokenRecord, day_of
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.model import Usage
from tests.fakes.store import NOON, session_key


@dataclass(frozen=True)
class FixedPrices:
    """So many billionths of a dollar for each token; None: unknown."""

    nano_usd: int | None = None

    def cost(
        self, provider: str, model: str, usage: Usage, at: datetime
    ) -> tuple[int, Pricing] | None:
        return None if self.nano_usd is None else (self.nano_usd * usage.total, "table")


def a_reservation(
    id_: str = "r1", key: SessionKey | None = None, *, at: datetime = NOON
) -> Reservation:
    payer = Payer(key or session_key(), RunId("run-1"))
    return Reservation(id_, payer, "fake", "fake-1", at, day_of(at), 10, Amount())


def a_record(
    of: Reservation, input_tokens: int = 10, output_tokens: int = 5, **changes: object
) -> TokenRecord:
    return TokenRecord(
        id=of.id,
        at=of.at,
        session_key=of.payer.session_key,
        run_id=of.payer.run_id,
        provider=of.provider,
        model=of.model,
        outcome="answered",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        **changes,  # type: ignore[arg-type]  # the tests' own short-hand
    )
