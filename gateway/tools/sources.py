"""The sources in a tool's result: `sources` of a JSON object, which is not trusted."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.ports import Decode

MOST_SOURCES = 50  # of one result
MOST_VALUES = 50_000  # of a result that is looked into: nobody else has a turn meanwhile
MOST_FIELD = 500  # characters of an id, a title or a URL
MOST_SCORE = 1e300  # beyond it, as of what is no number, a difference is none that can be told
# To click on: http, https, or a path without any scheme that a browser could find in it.
_URL = re.compile(r"(?:https?://|(?!//)(?![a-z][a-z0-9+.-]*:))[^\s\\\x00-\x1f\x7f]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolSource:
    """Something that a result is based on; `url` is None if none may be followed."""

    id: str
    title: str
    url: str | None


@dataclass(frozen=True, slots=True)
class Listed:
    """The sources of a result and the number of its entries. `spread` is the difference between its
    scores, as a share of the highest score above 1."""

    sources: tuple[ToolSource, ...] = ()
    items: int | None = None
    spread: float | None = None  # None: nothing has a score
    tells_error: bool = False  # it is an object with an error


NOTHING = Listed()


def listed(content: str, decode: Decode) -> Listed:
    """Parses the sources of a result, each once, in order. Malformed ones are left out."""
    if content.lstrip()[:1] not in {"{", "["} or content.count(",") >= MOST_VALUES:
        return NOTHING
    try:
        value = decode(content)
    except ValueError:
        return NOTHING
    if isinstance(value, list):
        return Listed(items=len(value), spread=_spread(value))
    return _of_object(value) if isinstance(value, dict) else NOTHING


def _of_object(value: Mapping[str, object]) -> Listed:
    lists = [one for name, one in value.items() if isinstance(one, list) and name != "sources"]
    longest = max(lists, key=len, default=None)
    named = value.get("sources")
    entries = named[:MOST_SOURCES] if isinstance(named, list) else []
    found = (_source(one) for one in entries if isinstance(one, dict))
    sources = tuple(dict.fromkeys(source for source in found if source is not None))
    items = None if longest is None else len(longest)
    return Listed(sources, items, _spread(longest or ()), bool(value.get("error")))


def _spread(entries: Sequence[object]) -> float | None:
    told = (one.get("score") for one in entries if isinstance(one, dict))
    rated = (one for one in told if isinstance(one, int | float) and not isinstance(one, bool))
    scores = [one for one in rated if -MOST_SCORE <= one <= MOST_SCORE]
    return (max(scores) - min(scores)) / max(1.0, *scores) if scores else None


def _source(value: Mapping[str, object]) -> ToolSource | None:
    id_, title, url = (_text(value.get(field)) for field in ("id", "title", "url"))
    link = url if len(url) <= MOST_FIELD and _URL.fullmatch(url) else None
    name = (id_ or link or title)[:MOST_FIELD]
    return ToolSource(name, (title or name)[:MOST_FIELD], link) if name else None


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
