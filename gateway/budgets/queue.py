"""Calls that wait for tokens which others have reserved: principals take turns, and of one principal
who came first is served first."""

from bisect import insort_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile

from anyio import Event

from gateway.domain.budgets import Scope

Scopes = frozenset[Scope]
NO_SCOPES: Scopes = frozenset()


def without_period(scopes: Iterable[Scope]) -> Scopes:
    """Which day or month it is plays no part in waiting."""
    return frozenset(
        scope._replace(name="") if scope.kind in {"day", "month"} else scope for scope in scopes
    )


@dataclass(slots=True, eq=False)
class Place:
    """Of one waiting call. `blocked`: the scopes that had no room for it when it last tried."""

    scopes: Scopes
    turn: int  # of its principal; who has had fewer goes first
    blocked: Scopes = NO_SCOPES
    is_due: bool = False  # something changed since, so it may try again
    is_trying: bool = True
    woken: Event = field(default_factory=Event)

    @property
    def claims(self) -> Scopes:
        """Scopes in which nobody behind it may go first."""
        return self.scopes if self.is_trying else self.blocked


# Every call is of a day and a month: where one of these is claimed, nobody behind it may try.
_COMMON = frozenset({Scope("day", ""), Scope("month", "")})


class BudgetQueue:
    """One for all budgets. It knows no amounts: the ledger decides whether a call fits."""

    def __init__(self) -> None:
        self.places: list[Place] = []  # in the order in which they are served
        self._turns: dict[Hashable, int] = {}  # the last of each principal, while anybody waits
        self._claims: Counter[Scope] = Counter()
        self.changes = 0  # how often somebody may have got a chance

    def claimed(self, scopes: Scopes, place: Place | None) -> Scopes:
        """Those of the scopes that a call which came earlier waits for."""
        if place is None:
            return frozenset(scope for scope in scopes if scope in self._claims)
        earlier = takewhile(lambda other: other is not place, self.places)
        return scopes & NO_SCOPES.union(*(other.claims for other in earlier))

    def join(self, scopes: Scopes, whose: Hashable) -> Place:
        """A place of a call that has tried: behind all of its principal's, and before those with
        which others would have had more turns."""
        first = self.places[0].turn if self.places else 0
        turn = max(first, self._turns.get(whose, -1) + 1)
        place = Place(scopes, turn)
        self._turns[whose] = turn
        insort_right(self.places, place, key=lambda other: other.turn)
        self._claims.update(place.claims)
        return place

    def block(self, place: Place, blocked: Scopes, seen: int) -> None:
        """Its try failed. `seen`: `changes` when the try began."""
        is_due, released = self.changes != seen, place.claims - blocked
        self._forget(place)
        place.blocked, place.is_trying = blocked, False
        place.is_due, place.woken = is_due, Event()
        self._claims.update(blocked)
        self._release(self._behind(place), released)

    def leave(self, place: Place) -> None:
        """It got what it waited for, or waits no longer."""
        behind = self._behind(place)
        self._forget(place)
        self.places.remove(place)
        if not self.places:
            self._turns.clear()
        self._release(behind, place.claims)

    def freed(self, scopes: Scopes) -> None:
        """Something that was reserved in these scopes is settled or released."""
        self._release(list(self.places), scopes)

    def _behind(self, place: Place) -> Sequence[Place]:
        return list(dropwhile(lambda other: other is not place, self.places))[1:]

    def _forget(self, place: Place) -> None:
        for scope in place.claims:
            self._claims[scope] -= 1
            if not self._claims[scope]:
                del self._claims[scope]

    def _release(self, whom: Sequence[Place], scopes: Scopes) -> None:
        """Whoever of these is blocked by one of the scopes may try again, once it is its turn."""
        self.changes += 1
        for place in whom:
            place.is_due = place.is_due or not place.blocked.isdisjoint(scopes)
        claimed: set[Scope] = set()
        for place in self.places:
            if place.is_due and not place.is_trying and claimed.isdisjoint(place.scopes):
                self._forget(place)
                place.is_due, place.is_trying = False, True
                self._claims.update(place.claims)
                place.woken.set()
            claimed |= place.claims
            if not claimed.isdisjoint(_COMMON):
                return
