"""The tool `result`: reads parts of a result that the model was not shown whole."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anyio import to_thread

from gateway.domain.agents import RESULT
from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.ids import SessionKey
from gateway.domain.messages import BYTES_A_TOKEN
from gateway.domain.model import ToolSpec
from gateway.domain.ports import SessionStore, ToolScope, ToolStore
from gateway.tools.excerpts import RESULT_SHARE

SCHEME = "result://"
MOST_PART = 12_000  # characters at a time
MOST_HITS = 40
AROUND = 120  # characters shown on each side of a hit
MOST_SOUGHT = 200
_ANY = "surrogatepass"  # a tool may say what is no text
PIECE = 65_536  # characters that are searched at once
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
)


@dataclass(frozen=True, slots=True)
class ResultTool:
    """Implements the Tool port."""

    originals: ToolStore
    transcript: SessionStore | None = (
        None  # of the conversation: a result is in it, under a message
    )
    spec: ToolSpec = SPEC

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        named = arguments.get("id") or arguments.get("reference")
        if named is None:
            raise ToolFailed("It needs the id of a result. Ids stand in the results of tools.")
        reference = str(named).strip().removeprefix(SCHEME)
        try:
            content = await self._content(scope.session_key, reference)
        except StoreUnavailable:
            raise ToolFailed("It is out of reach for now. Go on without it.") from None
        if content is None:
            raise ToolFailed(
                f"No result {reference[:80]!r} is kept in this conversation. Ids stand in the results "
                "of tools; or call the tool again that gave it."
            )
        sought, most = arguments.get("grep"), _most_bytes(scope)
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


def _most_bytes(scope: ToolScope) -> int:
    """What it returns is small enough to be shown whole."""
    if scope.agent is None:
        return 4 * MOST_PART
    return int(scope.agent.context.token_budget // RESULT_SHARE * BYTES_A_TOKEN)


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
    told = f"{sought!r} stands in {more}{min(len(places), MOST_HITS)} places"
    return "\n".join([f"{told} of its {len(content)} characters.", *shown])


def _places(content: str, sought: str) -> Iterator[int]:
    """Positions of the text, at most one more than are shown, none within the excerpt of the one
    before. Searches small pieces, so that other threads run in between."""
    at, count = 0, 0
    while at < len(content) and count <= MOST_HITS:
        piece, wanted = content[at : at + PIECE + 2 * len(sought)], sought
        lower = piece.lower()
        if len(lower) == len(piece):  # one letter has a longer small form
            piece, wanted = lower, sought.lower()
        found = piece.find(wanted)
        if found < 0:
            at += PIECE
            continue
        yield at + found
        at, count = at + found + len(sought) + AROUND, count + 1
