"""What the ledger's writer knows by heart is what the tables hold, whatever it forgets."""

import sqlite3
from dataclasses import replace

from gateway.domain.budgets import Amount, Scope, Tally, day_of, scopes_of
from gateway.store.tables import migrate
from gateway.store.writer import Book, tallies_of
from tests.fakes.ledger import a_reservation
from tests.fakes.store import NOON, session_key


def test_what_is_held_is_not_forgotten_for_others() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    book, scopes = Book(db), scopes_of(session_key(), day_of(NOON))
    reservation = replace(a_reservation(), held=Amount(100, 7))

    book.hold(reservation, book.tallies(scopes))
    for number in range(10_000):
        book.tallies([Scope("session", f"s{number}")])

    assert [one.held for one in book.tallies(scopes)] == [Amount(100, 7)] * 4
    assert book.take(reservation.id, Amount(5)) is not None
    assert book.take(reservation.id, Amount(5)) is None
    assert book.tallies(scopes) == [Tally(one, Amount(5), Amount(), NOON) for one in scopes]
    assert len(book) < 5_000


def test_a_new_book_has_what_the_tables_have() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    scopes = scopes_of(session_key(), day_of(NOON))
    row = ("r1", str(session_key()), "run-1", "fake", "fake-1", 0, day_of(NOON), 10, 100, 7)
    db.execute(f"INSERT INTO reservation VALUES ({', '.join('?' * len(row))})", row)

    found = Book(db).tallies(scopes)

    assert found == tallies_of(scopes, db) == [Tally(one, held=Amount(100, 7)) for one in scopes]
