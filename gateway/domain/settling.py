"""What is believed, made of all that was claimed: whatever the order in which it was learned."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from unicodedata import normalize

from gateway.domain.errors import GatewayError
from gateway.domain.facts import Claim, Fact, FactQuery, Source

# Characters.
LONGEST_NAME = 500  # of a subject or predicate
LONGEST_OBJECT = 4_000
LONGEST_QUOTE = 100_000

MOST_NAMED = 50  # messages

_ARTICLE = re.compile(r"^(?:the|an?) (?=\S)")
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f]+")


class ClaimRefused(GatewayError):
    """Nothing that a fact could be made of."""

    code = "invalid_params"


class QueryRefused(GatewayError):
    """More would have to be weighed than anybody should wait for."""

    code = "invalid_params"


def form(text: str) -> str:
    """What two spellings of one thing have in common: neither case, blanks, a leading article nor
    final punctuation tells things apart."""
    even = normalize("NFKC", normalize("NFKC", text).casefold())
    spaced = _BLANKS.sub(" ", even).strip()
    return _ARTICLE.sub("", spaced).rstrip(" .,;:!?…。、！？") or spaced


def predicate_form(text: str) -> str:
    """`lives_in` and `lives in` are one."""
    return form(text.replace("_", " "))


def require_claim(claim: Claim) -> None:
    """Raises ClaimRefused."""
    if not 0.0 <= claim.confidence <= 1.0:  # also if it is not a number
        raise ClaimRefused(f"confidence {claim.confidence} of a fact is not from 0 to 1")
    texts = {
        "subject": (form(claim.subject), claim.subject, LONGEST_NAME),
        "predicate": (predicate_form(claim.predicate), claim.predicate, LONGEST_NAME),
        "object": (form(claim.object), claim.object, LONGEST_OBJECT),
    }
    for name, (even, text, most) in texts.items():
        if not even:
            raise ClaimRefused(f"the {name} of a fact is empty: say what it is")
        if len(text) > most:
            raise ClaimRefused(
                f"the {name} of a fact has {len(text)} characters, at most {most} are kept: "
                "say it shorter"
            )
    if claim.source is not None and len(claim.source.quote) > LONGEST_QUOTE:
        raise ClaimRefused(f"the quote of a fact is longer than {LONGEST_QUOTE} characters")


@dataclass(frozen=True)
class Told:
    """A claim as it is kept; a fact has the id of the first claim of it that was learned."""

    id: str
    claim: Claim
    learned_at: datetime
    said_at: datetime | None = None  # what is left of a source that was erased

    @cached_property
    def object(self) -> str:
        return form(self.claim.object)

    @property
    def only_ends(self) -> bool:
        """It says that something is over, and nothing of what is there instead."""
        return self.claim.valid_to is not None and self.claim.valid_to <= self.claim.valid_from

    @property
    def since(self) -> datetime:
        """Not after its end: who says only that it has ended says nothing of its beginning."""
        return min(self.claim.valid_from, self.claim.valid_to or self.claim.valid_from)

    @property
    def said(self) -> datetime:
        source = self.claim.source
        return (source.at if source else self.said_at) or self.since

    @property
    def place(self) -> tuple[datetime, bool, datetime, datetime, str]:
        """Where it belongs among others: at equal times what only ended yields to what began, and
        what was said later wins, or else what was learned later. `in_order` sees to it that no
        two objects stand at one place: the object only keeps claims of one together."""
        has_begun = self.claim.valid_to is None or self.since < self.claim.valid_to
        return (self.since, has_begun, self.said, self.learned_at, self.object)


def in_order(claims: Sequence[Claim]) -> list[Claim]:
    """Claims in the order in which one message, or one call, states them: what takes the place of
    an earlier one is said a microsecond after it, so that the later statement wins."""
    ranks: dict[tuple[object, ...], int] = {}
    begun: dict[tuple[object, ...], str] = {}
    ordered = []
    for claim in claims:
        told = Told("", claim, claim.valid_from)
        said_in = claim.source.message_id if claim.source else claim.valid_from
        lane = "" if claim.functional else told.object
        key = (said_in, form(claim.subject), predicate_form(claim.predicate), lane)
        last = begun.get(key)
        if last is not None and (last == told.object) == told.only_ends:
            ranks[key] = ranks.get(key, 0) + 1
        if not told.only_ends:
            begun[key] = told.object
        elif last == told.object:
            del begun[key]
        ordered.append(_later(claim, timedelta(microseconds=ranks.get(key, 0))))
    return ordered


def _later(claim: Claim, by: timedelta) -> Claim:
    """A date of its own stays."""
    if not by:
        return claim
    source = claim.source and replace(claim.source, at=claim.source.at + by)
    undated = claim.source.at if claim.source else claim.valid_from
    since, until = (
        one + by if one == undated else one for one in (claim.valid_from, claim.valid_to)
    )
    assert since is not None
    return replace(claim, valid_from=since, valid_to=until, source=source)


@dataclass(slots=True)
class _Period:
    """While one object was it; `told` by their number in the order of learning."""

    object: str
    since: datetime
    until: datetime | None = None
    told: dict[int, Told] = field(default_factory=dict)

    @property
    def in_order(self) -> tuple[Told, ...]:
        return tuple(one for _, one in sorted(self.told.items()))


@dataclass(frozen=True, slots=True)
class Settled:
    """A fact with the claims that it is made of, in the order of learning."""

    fact: Fact
    told: tuple[Told, ...]


def settled(
    scope: str, told: Sequence[Told], *, before: Mapping[str, Fact], now: datetime
) -> Sequence[Settled]:
    """The facts of one subject and predicate, out of all that was claimed of them, in the order of
    learning. `before`: what was believed, by id; what was superseded stays so since then.

    Another object of a functional predicate ends the one before it; all else stands side by side.
    An object is functional if anybody ever claimed it to be.
    """
    functional = {one.object for one in told if one.claim.functional}
    lanes: dict[str, list[tuple[int, Told]]] = {}
    for number, one in enumerate(told):
        lanes.setdefault("" if one.object in functional else one.object, []).append((number, one))
    facts: list[Settled] = []
    for lane, those in lanes.items():
        following: str | None = None
        for period in reversed(_periods(those)):
            fact = _fact(scope, period, following, before, now, functional=not lane)
            following = fact.id
            facts.append(Settled(fact, period.in_order))
    return facts


def messages_of(sources: Sequence[Source]) -> tuple[str, ...]:
    """Those that a fact names; its origin has all."""
    return tuple(dict.fromkeys(source.message_id for source in sources[:MOST_NAMED]))


def by_time(fact: Fact) -> tuple[datetime, bool, str]:
    """The order in which facts are given: at equal times what is current last."""
    return (fact.valid_from, fact.superseded_at is None, fact.id)


def is_wanted(fact: Fact, query: FactQuery) -> bool:
    """Whether it held at the time asked for; without one, whether it still does."""
    if query.at is None:
        return query.with_history or fact.superseded_at is None
    return fact.valid_from <= query.at and (fact.valid_to is None or query.at < fact.valid_to)


def _periods(told: Sequence[tuple[int, Told]]) -> list[_Period]:
    """One after the other, no two side by side have the same object unless one ended."""
    periods: list[_Period] = []
    for at, is_end, number, one in _points(told):
        last = _open_one(periods)
        goes_on = last is not None and last.object == one.object
        if not is_end and _is_beside(last, one):
            periods.insert(0, _Period(one.object, at, at, {number: one}))
            continue
        if last is not None and goes_on == is_end:  # it has ended, or there is another
            last.until = at
        if is_end:
            continue
        if not goes_on:
            periods.append(_Period(one.object, at))
        periods[-1].told[number] = one
    return periods


def _open_one(periods: Sequence[_Period]) -> _Period | None:
    return periods[-1] if periods and periods[-1].until is None else None


def _is_beside(last: _Period | None, one: Told) -> bool:
    """What is over says nothing of another that is there now: that one goes on."""
    return last is not None and last.object != one.object and one.only_ends


def _points(
    told: Sequence[tuple[int, Told]],
) -> Iterator[tuple[datetime, bool, int, Told]]:
    """What begins and what ends, one after the other."""
    since = _sinces([one for _, one in told])
    points = [
        (since(one), False, (since(one), *one.place[1:]), number, one) for number, one in told
    ]
    for number, one in told:
        if one.claim.valid_to is not None:
            points.append((one.claim.valid_to, True, one.place, number, one))
    for at, is_end, _, number, one in sorted(points, key=lambda point: point[:4]):
        yield at, is_end, number, one


def _sinces(told: Sequence[Told]) -> Callable[[Told], datetime]:
    """When each began. Who says that it is so since a day and still is, says that whatever was
    claimed in between, without a date of its own, was so before that day."""
    still = {(one.object, one.since) for one in told}
    lasting = [one for one in told if one.since < one.said and one.claim.valid_to is None]
    spans = [(one.since, one.said, one.object) for one in lasting]
    spans = sorted(span for span in spans if (span[2], span[1]) in still)

    def since(one: Told) -> datetime:
        if one.claim.source is None or one.claim.valid_to or one.since != one.said:
            return one.since
        over = (
            begin
            for begin, end, object_ in spans
            if object_ != one.object and begin < one.since < end
        )
        return next(over, one.since)

    return since


def _fact(
    scope: str,
    period: _Period,
    following: str | None,
    before: Mapping[str, Fact],
    now: datetime,
    *,
    functional: bool,
) -> Fact:
    told = period.in_order
    first = told[0]
    claim, known = first.claim, before.get(first.id)
    is_over = following is not None or (period.until is not None and period.until <= now)
    superseded_at = (known and known.superseded_at) or now
    sources = [one.claim.source for one in told]
    return Fact(
        first.id,
        scope,
        claim.entity_type,
        claim.subject,
        claim.predicate,
        claim.object,
        functional,
        max(one.claim.confidence for one in told),
        claim.session_key,
        first.learned_at,
        period.since,
        period.until,
        superseded_at if is_over else None,
        following,
        messages_of([source for source in sources if source]),
    )
