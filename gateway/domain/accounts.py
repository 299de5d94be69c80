"""The ports that keep account of what is spent."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from gateway.domain.audit import AuditEntry, Deed, DeedKind
from gateway.domain.budgets import (
    Grant,
    ModelSum,
    Pricing,
    RecordPage,
    RecordQuery,
    Reservation,
    Resync,
    Scope,
    Tally,
    TokenRecord,
)
from gateway.domain.usage import Usage

Decide = Callable[[Sequence[Tally]], Grant]  # pure; raises BudgetExceeded
Due = Callable[[Tally], str]  # pure; the limit that somebody has to be warned about, or nothing
Ended = TokenRecord | Reservation  # what a call came to, or what was held for one that was not sent


class Ledger(Protocol):
    """Every provider call: held before it, recorded after it. Counters and records change together,
    in one commit without an fsync of its own. Raises StoreUnavailable."""

    async def reserve(self, wanted: Reservation, decide: Decide) -> tuple[Reservation, Grant]:
        """Asks `decide` with the tallies of all its scopes, which nobody changes meanwhile, and
        holds what it grants. Its day is moved on to the latest one that was ever reserved in."""
        ...

    async def settle(self, ended: Ended, due: Due) -> Sequence[Tally]:
        """Records what a reserved call came to, or lets go of what was held for nothing; a second
        time nothing. Gives the scopes to warn about, each once a limit."""
        ...

    def settle_soon(self, ended: Ended, failed: Callable[[Exception], None]) -> None:
        """The same without being waited for, and without a warning. Whatever is asked of the store
        later finds it done, or `failed` is told why it is not."""
        ...

    async def resync(self, now: datetime) -> Resync:
        """Goes back to the day of the clock, where it was ahead before: nothing is counted in days and
        months to come any more, but what is held, and what was made today, is counted today."""
        ...

    async def unsettled(self) -> Sequence[Reservation]:
        """All that is held; at a start, of the process that died."""
        ...


class Prices(Protocol):
    def cost(
        self, provider: str, model: str, usage: Usage, at: datetime
    ) -> tuple[int, Pricing] | None:
        """Billionths of a dollar, and who says so; None: nobody knows."""
        ...


class Spending(Protocol):
    """The ledger as it is looked at; nothing here depends on how long it is."""

    async def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        """A day or month is moved on as in `Ledger.reserve`."""
        ...

    async def models(self, limit: int) -> Sequence[ModelSum]:
        """Those that were asked most often first; the rest together, as `other`, comes on top."""
        ...

    async def records(self, query: RecordQuery) -> RecordPage: ...


class Audit(Protocol):
    """Entries are added and never changed."""

    async def append(self, deed: Deed) -> None:
        """Raises StoreUnavailable. Committed without an fsync of its own."""
        ...

    def append_soon(self, deed: Deed) -> None:
        """The same without being waited for; what cannot be written is logged."""
        ...

    async def newest(
        self, *, kind: DeedKind | None = None, before: int | None = None, limit: int = 1
    ) -> Sequence[AuditEntry]:
        """Newest first; `before` is a `seq`."""
        ...

    async def after(self, seq: int, *, limit: int) -> Sequence[AuditEntry]:
        """Oldest first."""
        ...
