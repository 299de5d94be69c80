"""The queue of calls that wait for tokens which other calls have reserved.

Principals take turns. Calls of one principal are served in the order in which they came.
"""

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
    """The scopes without the names of days and months, which play no part in waiting."""
    return frozenset(
        scope._replace(name="") if scope.kind in {"day", "month"} else scope for scope in scopes
    )


@dataclass(slots=True, eq=False)
class QueuePlace:
    """The place of one waiting call. `blocked`: the scopes without room when it last tried."""

    scopes: Scopes
    turn: int  # counted by principal; the lowest goes first
    blocked: Scopes = NO_SCOPES
    is_due: bool = False  # something changed since, so it may try again
    is_trying: bool = True
    woken: Event = field(default_factory=Event)

    @property
    def claims(self) -> Scopes:
        """Scopes in which no call behind it may go first."""
        return self.scopes if self.is_trying else self.blocked


# Every call has a day and a month. If one of them is claimed, no call behind it may try.
_COMMON = frozenset({Scope("day", ""), Scope("month", "")})


class BudgetQueue:
    """One queue for all budgets. The ledger decides whether a call fits; the queue knows no amounts."""

    def __init__(self) -> None:
        self.places: list[QueuePlace] = []  # in the order in which they are served
        self._turns: dict[Hashable, int] = {}  # the last of each principal, while calls wait
        self._claims: Counter[Scope] = Counter()
        self.changes = 0  # how often a waiting call may have got a chance

    def claimed(self, scopes: Scopes, place: QueuePlace | None) -> Scopes:
        """Those of the scopes that an earlier call waits for."""
        if place is None:
            return frozenset(scope for scope in scopes if scope in self._claims)
        earlier = takewhile(lambda other: other is not place, self.places)
        return scopes & NO_SCOPES.union(*(other.claims for other in earlier))

    def join(self, scopes: Scopes, whose: Hashable) -> QueuePlace:
        """Adds a call that has tried: behind the other calls of its principal, and before calls with a
        later turn."""
        first = self.places[0].turn if self.places else 0
        turn = max(first, self._turns.get(whose, -1) + 1)
        place = QueuePlace(scopes, turn)
        self._turns[whose] = turn
        insort_right(self.places, place, key=lambda other: other.turn)
        self._claims.update(place.claims)
        return place

    def block(self, place: QueuePlace, blocked: Scopes, seen: int) -> None:
        """Notes that a try failed. `seen`: `changes` when the try began."""
        is_due, released = self.changes != seen, place.claims - blocked
        self._forget(place)
        place.blocked, place.is_trying = blocked, False
        place.is_due, place.woken = is_due, Event()
        self._claims.update(blocked)
        self._release(self._behind(place), released)

    def leave(self, place: QueuePlace) -> None:
        """Removes a call that was granted or no longer waits."""
        behind = self._behind(place)
        self._forget(place)
        self.places.remove(place)
        if not self.places:
            self._turns.clear()
        self._release(behind, place.claims)

    def freed(self, scopes: Scopes) -> None:
        """Lets calls try again after a reservation in these scopes was settled or released."""
        self._release(list(self.places), scopes)

    def _behind(self, place: QueuePlace) -> Sequence[QueuePlace]:
        return list(dropwhile(lambda other: other is not place, self.places))[1:]

    def _forget(self, place: QueuePlace) -> None:
        for scope in place.claims:
            self._claims[scope] -= 1
            if not self._claims[scope]:
                del self._claims[scope]

    def _release(self, whom: Sequence[QueuePlace], scopes: Scopes) -> None:
        """Wakes those of the calls that one of the scopes blocks, each once it is its turn."""
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
