"""What was spent and what is held: as the tables have it, and as their writer knows it by heart."""

import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateway.domain.budgets import Amount, Payer, Reservation, Scope, Tally, scopes_of
from gateway.domain.ids import RunId, SessionKey
from gateway.store.rows import to_time

_KNOWN = 4096  # scopes; about 0.5 kB each
_NOTHING = Amount()


class Book:
    """For the writer's thread alone; uncommitted writes of its batch are included."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.latest = latest_day(db)
        self._open = {one.id: one for one in reservations(db)}
        scopes = [scope for one in self._open.values() for scope in _scopes(one)]
        # Those of which something is held are always in it.
        self._tallies = OrderedDict((one.scope, one) for one in tallies_of(scopes, db))

    def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        """One for each, in their order."""
        known = self._tallies
        for scope in scopes:
            if scope in known:
                known.move_to_end(scope)
            else:
                known[scope] = _spent(scope, self._db)
        found = [known[scope] for scope in scopes]
        while len(known) > _KNOWN + len(scopes) * (1 + len(self._open)):
            scope, oldest = known.popitem(last=False)
            if oldest.held != _NOTHING:
                known[scope] = oldest
        return found

    def __len__(self) -> int:
        return len(self._tallies)

    def hold(self, reservation: Reservation, tallies: Sequence[Tally]) -> None:
        self._open[reservation.id], self.latest = reservation, reservation.day
        for one in tallies:
            held, since = one.held + reservation.held, one.since or reservation.at
            self._tallies[one.scope] = Tally(one.scope, one.used, held, since, one.warned)

    def take(self, reservation_id: str, used: Amount) -> tuple[Reservation, Sequence[Tally]] | None:
        """What was held for it is used in so far; None if nothing was held."""
        taken = self._open.pop(reservation_id, None)
        if taken is None:
            return None
        for scope in _scopes(taken):
            one = self._tallies[scope]
            change = (one.used + used, one.held - taken.held)
            self._tallies[scope] = Tally(scope, *change, one.since, one.warned)
        return taken, [self._tallies[scope] for scope in _scopes(taken)]

    def warn(self, tally: Tally) -> None:
        self._tallies[tally.scope] = tally


def latest_day(db: sqlite3.Connection) -> str:
    """The latest that anything was reserved in: what is spent is never opened again."""
    row = db.execute("SELECT max(name) FROM spend WHERE kind = 'day'").fetchone()
    return row[0] or ""


def reservations(db: sqlite3.Connection) -> Sequence[Reservation]:
    rows = db.execute(f"SELECT {RESERVATION} FROM reservation ORDER BY id").fetchall()
    return [_to_reservation(row) for row in rows]


def tallies_of(scopes: Sequence[Scope], db: sqlite3.Connection) -> Sequence[Tally]:
    """One for each, in their order."""
    held = dict.fromkeys(scopes, _NOTHING)
    for one in reservations(db):
        held |= {scope: held[scope] + one.held for scope in _scopes(one) if scope in held}
    return [replace(_spent(scope, db), held=held[scope]) for scope in scopes]


def _spent(scope: Scope, db: sqlite3.Connection) -> Tally:
    """Without what is held."""
    row = db.execute(_SPENT, (scope.kind, scope.name)).fetchone()
    if row is None:
        return Tally(scope)
    tokens, nano_usd, since, warned = row
    return Tally(scope, Amount(tokens, nano_usd), _NOTHING, to_time(since), warned)


def _scopes(reservation: Reservation) -> Sequence[Scope]:
    return scopes_of(reservation.payer.session_key, reservation.day)


def _to_reservation(row: Sequence[Any]) -> Reservation:
    id_, session, run_id, provider, model, at, day, input_tokens, tokens, nano_usd = row
    payer = Payer(SessionKey.parse(session), RunId(run_id))
    held = Amount(tokens, nano_usd)
    return Reservation(id_, payer, provider, model, to_time(at), day, input_tokens, held)


RESERVATION = (
    "id, session, run_id, provider, model, at, day, input_tokens, held_tokens, held_nano_usd"
)
_SPENT = """
SELECT input_tokens + output_tokens, nano_usd, since, warned FROM spend
WHERE kind = ? AND name = ?
"""
