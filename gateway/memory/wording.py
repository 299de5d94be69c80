"""Finds dates, predicates and identifiers in texts. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

NOW = ("today", "now")
LAST_MOMENT = time.max.replace(tzinfo=UTC)  # of a day
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_FEW: dict[str, int] = {"a": 1, "an": 1, **{word: n for n, word in enumerate(_NUMBERS, 1)}}
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_LEAD = r"\b(?:ever since|since|seit|as of|starting|back in|in|on|from|until|till)\s{1,3}(?:the\s)?(?:early\s|late\s|mid-?\s?)?"


@dataclass(frozen=True, slots=True)
class TimeWord:
    """A date in a text: its position, and the beginning of the period that it names."""

    at: datetime
    start: int
    end: int
    is_day: bool = False  # else it names a month or a year


def named(text: str, said_at: datetime) -> TimeWord | None:
    """The most exact date in the text, also a future one. None if there is none."""
    if ahead := _AHEAD.search(text):
        return TimeWord(datetime.max.replace(tzinfo=UTC), ahead.start(), ahead.end())
    hints = tuple(hint for hint in (_WRITTEN, _RELATIVE) if hint.search(text))
    if not hints:
        return None
    forms = ((pattern.search(text), resolve) for hint, pattern, resolve in _FORMS if hint in hints)
    match, resolve = next((form for form in forms if form[0]), (None, _written))
    if match is None:
        return None
    try:
        at = resolve(match, said_at.astimezone(UTC))
    except (ValueError, OverflowError):  # the day does not exist
        return None
    return TimeWord(at, match.start(), match.end(), "day" in match.groupdict())


def parse(text: object, said_at: datetime) -> datetime | None:
    """Parses an ISO date. None if it is none, or lies in the future."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text[:40])
    except ValueError:
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return at if at <= said_at else None


def end_of(day: str) -> datetime | None:
    """The last moment of an ISO day, in UTC. None if the text is none."""
    try:
        at = datetime.strptime(day.strip(), "%Y-%m-%d")  # noqa: DTZ007  # the time is added below
    except ValueError:
        return None
    return datetime.combine(at, LAST_MOMENT)


def as_asked(at: datetime | str, now: datetime) -> datetime:
    """The moment that a query means: the end of a day, or now if that day is today."""
    if isinstance(at, str) or (at.timetz() == LAST_MOMENT and at.date() == now.date()):
        return now
    return at


def _day(year: int, month: int = 1, day: int = 1) -> datetime:
    return datetime(year, month, day, tzinfo=UTC)


def _written(match: re.Match[str], said_at: datetime) -> datetime:
    """A day or month with or without a year. Without one it is the last such day."""
    parts = match.groupdict()
    month = _MONTHS.index(parts["month"][:3].lower()) + 1 if parts.get("month") else 1
    day = int(parts.get("day") or 1)
    if parts.get("year"):
        return _day(int(parts["year"]), month, day)
    this_year = _day(said_at.year, month, day)
    return this_year if this_year <= said_at else _day(said_at.year - 1, month, day)


def _iso(match: re.Match[str], _said_at: datetime) -> datetime:
    return _day(*map(int, match["day"].split("-")))


def _ago(match: re.Match[str], said_at: datetime) -> datetime:
    """Returns the same day so many periods earlier, or the last day of a shorter month."""
    few, unit = match["few"].lower(), match["unit"].lower()
    count = _FEW.get(few) or int(few)
    if unit[0] in "dw":
        return _midnight(said_at - timedelta(days=count * (7 if unit[0] == "w" else 1)))
    first = _months_back(said_at, count * (12 if unit[0] == "y" else 1))
    last = _months_back(first, -1) - timedelta(days=1)
    return first.replace(day=min(said_at.day, last.day))


def _last(match: re.Match[str], said_at: datetime) -> datetime:
    """The beginning of the previous week, month or year."""
    unit = match["unit"].lower()
    if unit == "day":
        return _midnight(said_at - timedelta(days=1))
    if unit == "week":
        return _midnight(said_at - timedelta(days=said_at.weekday() + 7))
    return _day(said_at.year - 1) if unit == "year" else _months_back(said_at, 1)


def _weekday(match: re.Match[str], said_at: datetime) -> datetime:
    back = (said_at.weekday() - _DAYS.index(match["day"][:3].lower())) % 7 or 7
    return _midnight(said_at - timedelta(days=back))


def _near(match: re.Match[str], said_at: datetime) -> datetime:
    days = {"yesterday": 1, "last night": 1, "the day before yesterday": 2}
    return _midnight(said_at - timedelta(days=days.get(" ".join(match["day"].lower().split()), 0)))


def _this(match: re.Match[str], said_at: datetime) -> datetime:
    unit = match["unit"].lower()
    if unit in {"day", "week"}:
        return _midnight(said_at - timedelta(days=said_at.weekday() if unit == "week" else 0))
    return _day(said_at.year, said_at.month if unit == "month" else 1)


def _months_back(at: datetime, count: int) -> datetime:
    """The first day of the month, `count` months before."""
    months = at.year * 12 + at.month - 1 - count
    return _day(months // 12, months % 12 + 1)


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


Resolve = Callable[[re.Match[str], datetime], datetime]
_AHEAD = re.compile(
    r"\b(?:from\s|starting\s)?(?:tomorrow|next (?:week|month|year|spring|summer|autumn|fall|winter"
    rf"|(?:mon|tues|wednes|thurs|fri|satur|sun)day|{_MONTH.replace('?P<month>', '?:')}))\b",
    re.IGNORECASE,
)
_MANY = r"(?P<few>an?|\d{1,3}|" + "|".join(_NUMBERS) + r")\s{1,3}"
_UNIT = r"(?:day|week|month|year)"
_OPENED = r"(?:\b(?:since|on|in|from|as of|back in|until|till)\s{1,3})?"
# A form can only match a text that matches its hint.
_WRITTEN = re.compile(r"\d|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)", re.IGNORECASE)
_RELATIVE = re.compile(r"\b(?:ago|last|this|yesterday|today)\b", re.IGNORECASE)
_NEAR = r"the day before yesterday|yesterday|last night|today|this morning"
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
# The first form that is found decides, so the more exact ones come first.
_FORMS: tuple[tuple[re.Pattern[str], re.Pattern[str], Resolve], ...] = tuple(
    (hint, re.compile(pattern, re.IGNORECASE), resolve)
    for hint, pattern, resolve in (
        (_WRITTEN, rf"{_OPENED}(?P<day>\b\d{{4}}-\d\d-\d\d)\b", _iso),
        (_WRITTEN, rf"{_OPENED}(?:the\s)?\b{_DAY}\s(?:of\s)?{_MONTH},?\s{_YEAR}", _written),
        (_WRITTEN, rf"{_OPENED}\b{_MONTH}\s{_DAY},?\s{_YEAR}", _written),
        (_WRITTEN, rf"{_LEAD}{_DAY}\s(?:of\s)?{_MONTH}", _written),
        (_WRITTEN, rf"{_LEAD}{_MONTH}\s{_DAY}\b", _written),
        (_WRITTEN, rf"{_OPENED}\b{_MONTH}\s(?:of\s)?{_YEAR}", _written),
        (_RELATIVE, rf"\b(?:about\s|around\s)?{_MANY}(?P<unit>{_UNIT}s?)\sago\b", _ago),
        (_RELATIVE, rf"\b(?:since\s)?last\s(?P<unit>{_UNIT})\b", _last),
        (_RELATIVE, rf"\b(?:since\s|on\s)?last\s(?P<day>{_WEEKDAY})\b", _weekday),
        (_RELATIVE, rf"\b(?:since\s)?last\s{_MONTH}", _written),
        (_RELATIVE, rf"\b(?:since\s)?(?P<day>{_NEAR})\b", _near),
        (_RELATIVE, rf"\b(?:earlier\s)?this\s(?P<unit>{_UNIT})\b", _this),
        (_WRITTEN, rf"{_LEAD}{_MONTH}(?!\s?\d)", _written),
        (_WRITTEN, rf"{_LEAD}{_YEAR}", _written),
    )
)

LONGEST = 40  # characters

# Predicates with one object at a time.
_FUNCTIONAL = re.compile(
    r"(?:nick|user)?name|location|hometown|address|employer|occupation|age|birthday|birth_date"
    r"|birthplace|nationality|spouse|marital_status|email|phone|phone_number|timezone|language"
    r"|native_language|blood_type|zodiac_sign|diet|pronouns|religion|salary|height|weight|shoe_size"
    r"|vet|doctor|dentist|therapist|teacher|boss|manager|landlord|owner|breed|color|school"
    r"|university|major|degree|favourite_\w+"
    r"|\w+_(?:name|color|age|birthday|address|email|phone|breed|size|vet|location)"
)
_PLURAL = re.compile("(?:dis)?likes|allergic_to|speaks|studies|has|started|is|knows")
_SAME = {
    **dict.fromkeys(("job", "profession"), "occupation"),
    **dict.fromkeys(("workplace", "company", "works_at", "works_for"), "employer"),
    **dict.fromkeys(("home", "residence", "city", "lives_in"), "location"),
    "bday": "birthday",
    "date_of_birth": "birth_date",
    "mother_tongue": "native_language",
    "time_zone": "timezone",
    "e_mail": "email",
    "veterinarian": "vet",
}


def predicate_of(words: str) -> str:
    """The canonical predicate: lower case, underscores, one word for synonyms. Empty if nothing is
    left."""
    name = "_".join(re.findall(r"[^\W_]+", words.lower()[: 2 * LONGEST]))
    name = name.replace("favorite", "favourite").replace("colour", "color")[:LONGEST].rstrip("_")
    return _SAME.get(name, name)


def kept_under(predicate: str) -> str:
    """Returns the canonical predicate of a name; the name itself if it is too long."""
    return (predicate_of(predicate) if len(predicate) <= LONGEST else "") or predicate


def is_functional(predicate: str, *, otherwise: bool = False) -> bool:
    """Whether a subject has one object at a time. `otherwise` answers for unknown predicates."""
    if _FUNCTIONAL.fullmatch(predicate):
        return True
    return otherwise and not _PLURAL.fullmatch(predicate)


# Words of questions, with the predicates that they ask for.
_ASKED = {
    **dict.fromkeys(("live", "lives", "living", "lived", "reside", "home"), ("location",)),
    **dict.fromkeys(("work", "works", "working", "worked"), ("employer", "occupation")),
    **dict.fromkeys(("job", "profession"), ("occupation", "employer")),
    "old": ("age",),
    "born": ("birthday", "birthplace"),
}


def asked_of(words: Sequence[str]) -> tuple[str, ...]:
    """Predicates that people ask for in other words."""
    return tuple(dict.fromkeys(name for word in words for name in _ASKED.get(word, ())))


_LOOKED_AT = 20_000  # characters of a text

# No pattern nests repetitions: pasted text must not make one slow.
_KINDS = (
    re.compile(r"`([^`\n]{1,120})`"),
    re.compile(r"\b(?:https?|ftp|wss?|file|result)://[^\s<>\"'`)\]]{1,190}"),
    re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,32}){1,4}"),
    re.compile(r"(?<![\w/.])(?:~|\.{1,2})?(?:/[\w.@+-]{1,64}){2,12}"),
    re.compile(r"(?<![\w/.])[\w-]{1,64}(?:/[\w.@-]{1,64}){1,8}\.\w{1,8}\b"),
    re.compile(r"(?<![\w/.])(?=[\w.-]{5})\w[\w-]{0,62}(?:\.[A-Za-z][\w-]{0,62}){1,6}\b"),
    re.compile(r"#\d{1,12}\b"),
    re.compile(r"(?<![\w.,])[$€£]?\d{1,15}(?:[.,:-]\d{1,12}){0,6}%?(?!\w)"),
    re.compile(r"\b(?=[\w-]{0,60}\d)(?=[\w-]{0,60}[A-Za-z])[A-Za-z0-9][\w-]{3,60}\b"),
    re.compile(r"\b[A-Za-z]{1,40}(?:_[A-Za-z0-9]{1,40}){1,8}\b"),
)
_FILE = re.compile(r"[\w.@+~/-]{1,150}\.\w{1,8}")
_SYMBOL = re.compile(r"[A-Za-z_][\w.]{1,80}(?:\(\))?")
_SAYS = re.compile(r"(?!\d{1,2}$).{1,200}")  # a small number says nothing by itself


def identifiers(text: str) -> Sequence[str]:
    """Returns the identifiers in order of position, without duplicates. Of overlapping ones the
    longest counts."""
    matches = (match for kind in _KINDS for match in kind.finditer(text[:_LOOKED_AT]))
    spans = sorted((match.start(), -match.end(), match[match.lastindex or 0]) for match in matches)
    names: dict[str, None] = {}
    taken_to = 0
    for start, end, name in spans:
        if start >= taken_to:
            taken_to = -end
            names[name.strip(".,;:")] = None
    return [name for name in names if _SAYS.fullmatch(name)]


def missing_from(told: str, texts: Sequence[str], later: str, *, most: int) -> Sequence[str]:
    """Returns identifiers of `texts` that `told` lacks: identifiers in `later` first, then the most
    frequent, then the newest."""
    counts: Counter[str] = Counter()
    newest: dict[str, int] = {}
    for place, text in enumerate(texts):
        for name in identifiers(text):
            counts[name] += 1
            newest[name] = place
    lost = [name for name in counts if name not in told]
    lost.sort(key=lambda name: (name in later, counts[name], newest[name]), reverse=True)
    return lost[:most]


def files_and_symbols(texts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    names = dict.fromkeys(name for text in texts for name in identifiers(text))
    quoted = {quote for text in texts for quote in _KINDS[0].findall(text[:_LOOKED_AT])}
    files = [name for name in names if _FILE.fullmatch(name) and not name[0].isdigit()]
    symbols = [name for name in names if name in quoted and _SYMBOL.fullmatch(name)]
    return files, [name for name in symbols if name not in files]
