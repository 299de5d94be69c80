"""Budgets for tests: prices that are known by heart, a ledger that can be away, reservations and
records to put anywhere."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.domain.budgets import (
    SCOPE_KINDS,
    Amount,
    Decide,
    Due,
    Ended,
    Grant,
    Payer,
    Pricing,
    Reservation,
    Resync,
    ScopeKind,
    Tally,
    TokenRecord,
    day_of,
)
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.messages import Usage
from gateway.domain.ports import Ledger
from tests.fakes.ports import PartOfLedger
from tests.fakes.store import NOON, session_key


@dataclass(frozen=True)
class FixedPrices:
    """So many billionths of a dollar for each token; None: unknown."""

    nano_usd: int | None = None

    def cost(
        self, provider: str, model: str, usage: Usage, at: datetime
    ) -> tuple[int, Pricing] | None:
        return None if self.nano_usd is None else (self.nano_usd * usage.total, "table")


@dataclass
class AwayLedger(PartOfLedger):
    """Does nothing of what `away` names: as a full disk, or a process that is dead."""

    inner: Ledger
    away: set[str] = field(default_factory=set)

    def _look(self, what: str) -> None:
        if what in self.away:
            raise StoreUnavailable("the disk is full")

    def begin(self, wanted: Reservation) -> Reservation:
        self._look("reserve")
        return self.inner.begin(wanted)

    async def reserve(
        self, wanted: Reservation, decide: Decide, kinds: Collection[ScopeKind] = SCOPE_KINDS
    ) -> tuple[Reservation, Grant]:
        self._look("reserve")
        return await self.inner.reserve(wanted, decide, kinds)

    async def settle(self, ended: Ended) -> None:
        self._look("settle")
        await self.inner.settle(ended)

    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]:
        try:
            self._look("settle")
        except StoreUnavailable as error:
            failed(error)
            return ()
        return self.inner.settle_soon(ended, failed, due)

    async def resync(self, now: datetime) -> Resync:
        self._look("resync")
        return await self.inner.resync(now)

    async def unsettled(self) -> Sequence[Reservation]:
        return await self.inner.unsettled()


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
