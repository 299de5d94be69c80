"""The results of tools: their sources, and how a model reads a large one.

`listed` finds the sources in a result. The model sees both ends of a large result (`ends_within`), the store
keeps the whole, and the tool `result` reads parts of it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from anyio import to_thread

from gateway.codec import decode
from gateway.domain.agents import RESULT
from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.messages import BYTES_A_TOKEN, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.ports import SessionStore, ToolScope, ToolStore

MOST_RESULT = 262_144  # characters in a conversation; also in docs/reference/protocol.md
MOST_KEPT = 4_194_304  # characters of the whole, for the tool `result`
RESULT_SHARE = 4  # one result takes at most 1/4 of context.token_budget

SCHEME = "result://"
MOST_PART = 12_000  # characters at a time
MOST_HITS = 40
AROUND = 120  # characters shown on each side of a hit
MOST_SOUGHT = 200
_ANY = "surrogatepass"  # results of tools may hold lone surrogates
PIECE = 65_536  # characters of one step of a search
_NAME = {"type": "string", "minLength": 1, "maxLength": 200}
_PLACE = {"type": "integer", "minimum": 0}
_PROPERTIES: Mapping[str, object] = {
    "id": _NAME,
    "offset": _PLACE,
    "reference": _NAME,
    "from": _PLACE,
    "to": _PLACE,
    "grep": _NAME | {"maxLength": MOST_SOUGHT},
}
_PARAMETERS = {"type": "object", "properties": _PROPERTIES, "additionalProperties": False}
SPEC = ToolSpec(
    RESULT,
    f"Reads a tool's result that you were not shown whole, by its id (or reference, {SCHEME}…): the "
    f"characters from offset (or from) .. to ({MOST_PART} at a time), or the places that hold the words "
    "of grep (as they stand, in any case), of which each has its position.",
    json.dumps(_PARAMETERS, separators=(",", ":")),
    category="meta",
    may_repeat=True,
)


def reference_of(run_id: RunId, call_id: str) -> str:
    """Derives the reference from run and call, so that a second attempt finds the result."""
    name = blake2b(call_id.encode("utf-8", _ANY), digest_size=8).hexdigest()
    return f"{run_id}/{name}"


def ends_within(content: str, head_bytes: int, tail_bytes: int) -> tuple[int, int]:
    """Returns the numbers of characters at the beginning and the end that fit into these bytes. Tokens are
    estimated from bytes."""
    whole = content.encode("utf-8", _ANY)
    head = whole[:head_bytes].decode("utf-8", "ignore")
    tail = whole[max(0, len(whole) - tail_bytes) :].decode("utf-8", "ignore")
    return len(head), len(tail)


def cut_end(result: ToolResult, most: int) -> ToolResult:
    """Cuts a result after `most` characters, with a note."""
    content = result.content
    if len(content) <= most:
        return result
    note = f"[Cut: this is the beginning, {most} of {len(content)} characters. "
    return replace(result, content=f"{content[:most]}\n{note}Ask for less, or for a part.]")


def cut_middle(text: str, tokens: int) -> str:
    """Cuts the middle out of a text that is longer than `tokens`."""
    half = max(0, int(tokens * BYTES_A_TOKEN / 2))
    if len(text.encode("utf-8", _ANY)) <= 2 * half:
        return text
    head, tail = ends_within(text, half, half)
    left_out = f"[{len(text) - head - tail} characters are left out here]"
    return f"{text[:head]}\n{left_out}\n{text[len(text) - tail :]}"


# -- the tool `result`


@dataclass(frozen=True, slots=True)
class ResultTool:
    """Implements the Tool port."""

    originals: ToolStore
    transcript: SessionStore | None = None  # has the results of the conversation by message id
    spec: ToolSpec = SPEC

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        named = arguments.get("id") or arguments.get("reference")
        if named is None:
            raise ToolFailed("It needs the id of a result. Ids stand in the results of tools.")
        reference = str(named).strip().removeprefix(SCHEME)
        try:
            content = await self._content(scope.session_key, reference)
        except StoreUnavailable:
            raise ToolFailed("It cannot be read at the moment. Go on without it.") from None
        if content is None:
            raise ToolFailed(
                f"No result {reference[:80]!r} is kept in this conversation. Ids stand in the results "
                "of tools; or call the tool again that gave it."
            )
        # `most` keeps the part small enough to be shown whole.
        sought, most = arguments.get("grep"), 4 * MOST_PART
        if scope.agent is not None:
            most = int(scope.agent.context.token_budget // RESULT_SHARE * BYTES_A_TOKEN)
        if sought is not None:
            found = await to_thread.run_sync(_found, content, str(sought))
            return found.encode("utf-8", _ANY)[:most].decode("utf-8", "ignore")
        first = arguments.get("offset", arguments.get("from", 0))
        return _part(content, first, arguments.get("to"), most)

    async def _content(self, key: SessionKey, reference: str) -> str | None:
        original = await self.originals.read_original(key, reference)
        if original is not None:
            return original.content
        node = await self.transcript.node(key, reference) if self.transcript else None
        return node.message.result.content if node and node.message.result else None


def _part(content: str, first: object, last: object, most_bytes: int) -> str:
    assert isinstance(first, int)  # the schema says so
    piece = content[first : first + MOST_PART].encode("utf-8", _ANY)[:most_bytes]
    most = first + max(1, len(piece.decode("utf-8", "ignore")))
    end = min(most, last, len(content)) if isinstance(last, int) else min(most, len(content))
    if first >= end:
        raise ToolFailed(
            f"There is nothing from {first} to {last}: it has {len(content)} characters."
        )
    rest = f" Go on with offset={end}." if end < len(content) else " That is its end."
    return f"Characters {first} to {end} of {len(content)}.{rest}\n{content[first:end]}"


def _found(content: str, sought: str) -> str:
    places = list(_places(content, sought))
    if not places:
        return f"{sought!r} does not stand in its {len(content)} characters."
    shown = [
        f"at {at}: {content[max(0, at - AROUND) : at + len(sought) + AROUND]}"
        for at in places[:MOST_HITS]
    ]
    more = "at least " if len(places) > MOST_HITS else ""
    count = f"{more}{min(len(places), MOST_HITS)} places of its {len(content)} characters"
    return "\n".join([f"{sought!r} stands in {count}.", *shown])


def _places(content: str, sought: str) -> Iterator[int]:
    """Yields positions of the text: at most one more than are shown, none within the excerpt before it.
    Searches small pieces, so that other threads run in between."""
    at, count = 0, 0
    while at < len(content) and count <= MOST_HITS:
        piece, wanted = content[at : at + PIECE + 2 * len(sought)], sought
        lower = piece.lower()
        if len(lower) == len(piece):  # the lower case of one letter is longer
            piece, wanted = lower, sought.lower()
        found = piece.find(wanted)
        if found < 0:
            at += PIECE
            continue
        yield at + found
        at, count = at + found + len(sought) + AROUND, count + 1


# -- sources

MOST_SOURCES = 50  # of one result
MOST_VALUES = 50_000  # in a parsed result: the event loop waits for the parser
MOST_FIELD = 500  # characters of an id, a title or a URL
MOST_SCORE = 1e300  # larger scores are ignored
# A safe link: http, https, or a path in which no browser finds a scheme.
_URL = re.compile(r"(?:https?://|(?!//)(?![a-z][a-z0-9+.-]*:))[^\s\\\x00-\x1f\x7f]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolSource:
    """A source of a result. `url` is None if there is no safe link."""

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
    has_error: bool = False  # the result is an object with an `error`


NOTHING = Listed()


def listed(content: str) -> Listed:
    """Parses the sources of a result in order, each once. Invalid sources are left out."""
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
    values = (one.get("score") for one in entries if isinstance(one, dict))
    rated = (one for one in values if isinstance(one, int | float) and not isinstance(one, bool))
    scores = [one for one in rated if -MOST_SCORE <= one <= MOST_SCORE]
    return (max(scores) - min(scores)) / max(1.0, *scores) if scores else None


def _source(value: Mapping[str, object]) -> ToolSource | None:
    id_, title, url = (_text(value.get(field)) for field in ("id", "title", "url"))
    link = url if len(url) <= MOST_FIELD and _URL.fullmatch(url) else None
    name = (id_ or link or title)[:MOST_FIELD]
    return ToolSource(name, (title or name)[:MOST_FIELD], link) if name else None


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
