"""Tools: the gate in front of every one, and their results.

The gate checks that a tool is listed, known and called with valid arguments, limits its time, and shortens
its result for the model. `listed` finds the sources in a result. The model sees both ends of a large result
(`ends_within`), the store keeps the whole, and the tool `result` reads parts of it.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from secrets import token_hex

import anyio
from anyio import to_thread

from gateway.codec import decode, decode_strictly
from gateway.domain.agents import RESULT, AgentDef, Original
from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.mcp import McpServers, NoServers, UnreachableServer
from gateway.domain.messages import (
    BYTES_A_TOKEN,
    Excerpt,
    Spent,
    ToolCall,
    ToolResult,
    estimate_tokens,
)
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Clock, SchemaCheck, SessionStore, Tool, ToolScope, ToolStore

log = logging.getLogger(__name__)


# --- results -------------------------------------------------------------------------------------
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


# --- the gate ------------------------------------------------------------------------------------

LOGGED_WHY = 300
MARKER_TOKENS = 100  # for the marker and the boundary of a large result
MOST_LISTS = 1_000  # cached lists of offered tools
ASK_LESS = "Ask it for less, or go on without it."
MAY_BE_DONE = "It may have been carried out all the same: look before you call it again."
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # every provider accepts these


new_boundary = partial(token_hex, 8)


@dataclass(frozen=True, slots=True)
class RefusedTool:
    """A tool that is offered to no agent, and the reason."""

    name: str
    family: str
    why: str


@dataclass(frozen=True, slots=True)
class _Checked:
    tool: Tool
    spec: ToolSpec
    problem: Callable[[object], str | None]


class ToolGate:
    """Turns every failure of a tool into a result that tells the model what to do.

    Without `originals` no large result is kept whole, and its marker names no reference.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        schemas: SchemaCheck,
        clock: Clock,
        originals: ToolStore | None = None,
        boundary: Callable[[], str] = new_boundary,
    ) -> None:
        self.boundary, self._originals = boundary, originals
        self._schemas, self._clock = schemas, clock
        self._tools: dict[str, _Checked] = {}
        self._families: dict[str, list[str]] = {}
        self.refused: Sequence[RefusedTool] = ()  # the tools that are offered to no agent
        self._to_forget: set[SessionKey] = set()  # sessions of runs that are not kept
        self._offered: dict[object, tuple[ToolSpec, ...]] = {}  # by agent and list
        self.foreign: McpServers = NoServers()
        for tool in tools:
            self.register(tool)

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]:
        """Returns the tools of the agent in the order of its list; a family's tools in their own order."""
        wanted = (agent.id, agent.tools)
        found = self._offered.get(wanted)
        if found is None:
            if len(self._offered) >= MOST_LISTS:
                self._offered.clear()
            found = self._offered[wanted] = tuple(one.spec for one in self._of(agent).values())
        return found

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        return await self.shorten(agent, await self.call_whole(agent, call, scope), scope)

    async def call_whole(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        """Returns the whole result of a call."""
        began, spent, report = self._clock.monotonic(), list[Spent](), scope.spend
        known = self._tools.get(call.name)
        own = known.spec.timeout_s if known else None
        limit = agent.limits.tool_timeout_s if own is None else own

        def spend(one: Spent) -> None:
            spent.append(one)
            report(one)  # at once: the run may no longer wait for the result

        scope = replace(scope, call_id=call.id, spend=spend)
        try:
            with anyio.fail_after(limit):
                content, is_error = await self._attempt(agent, call, scope), False
        except ToolFailed as error:
            content, is_error = str(error), True
        except TimeoutError:
            hint = ASK_LESS if known is None or known.spec.may_repeat else MAY_BE_DONE
            content, is_error = f"{call.name} did not answer within {limit:g} s. {hint}", True
        took_ms = (self._clock.monotonic() - began) * 1000
        if is_error:
            log.info("tool_failed", extra={"tool": call.name, "why": content[:LOGGED_WHY]})
        outcome = (content, is_error, round(took_ms, 3), tuple(spent))
        return ToolResult(call.id, call.name, *outcome, boundary=self.boundary())

    async def shorten(self, agent: AgentDef, result: ToolResult, scope: ToolScope) -> ToolResult:
        """Returns the result in the form for the model. The conversation keeps up to MOST_RESULT
        characters."""
        most = agent.context.token_budget // RESULT_SHARE
        if result.name == RESULT or estimate_tokens(result.content) <= most:
            return cut_end(result, MOST_RESULT)
        content, size = result.content[:MOST_KEPT], len(result.content)
        reference = await self._keep(replace(result, content=content), scope)
        quarter = int((most - MARKER_TOKENS) * BYTES_A_TOKEN) // 4
        head, tail = ends_within(content, 3 * quarter, quarter)
        excerpt = Excerpt(head, tail, size, reference)
        if size > MOST_RESULT:
            content = replace(excerpt, head=MOST_RESULT // 2, tail=MOST_RESULT // 2).of(content)
        return replace(result, content=content, excerpt=excerpt)

    async def _keep(self, result: ToolResult, scope: ToolScope) -> str:
        """Keeps the whole result. Returns its reference; an empty text if it is not kept."""
        if self._originals is None:
            return ""
        key, now = scope.session_key, self._clock.now()
        reference = reference_of(scope.run_id, result.call_id)
        one = Original(reference, key, scope.run_id, result.name, result.content, now)
        try:
            await self._originals.keep_original(one)
        except StoreUnavailable as error:
            log.warning("tool_result_not_saved", extra={"tool": result.name, "why": str(error)})
            return ""
        if not scope.is_kept:
            self._to_forget.add(key)
        return reference

    async def forget(self, key: SessionKey) -> None:
        """Deletes the results of a run that is not kept. Raises StoreUnavailable."""
        if self._originals is not None and key in self._to_forget:
            self._to_forget.discard(key)
            await self._originals.forget_originals(key)

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        """Connects the agent's tool servers for a turn. Returns the missing ones."""
        return await self.foreign.prepare(agent)

    def renew(self, family: str, tools: Sequence[Tool]) -> None:
        """Replaces the tools of a family. Calls in progress end with the old tool."""
        self._offered.clear()
        for name in self._families.pop(family, ()):
            self._families.pop(self._tools.pop(name).spec.family, None)
        self.refused = [one for one in self.refused if family not in _families(one.family)]
        for tool in tools:
            self.register(tool)

    def listed(self, result: ToolResult) -> Listed:
        """Returns the sources of a result, and the number of its entries."""
        return NOTHING if result.is_error else listed(result.content)

    def register(self, tool: Tool) -> None:
        """Registers a tool. An invalid one is refused with the reason."""
        self._offered.clear()
        spec = tool.spec
        try:
            self._tools[spec.name] = _Checked(tool, spec, self._compiled(spec))
        except ValueError as error:
            self.refused = [*self.refused, RefusedTool(spec.name, spec.family, str(error))]
            log.warning("tool_refused", extra={"tool": spec.name[:64], "why": str(error)})
            return
        for family in _families(spec.family):
            self._families.setdefault(family, []).append(spec.name)

    def _compiled(self, spec: ToolSpec) -> Callable[[object], str | None]:
        """Compiles the check of the arguments. Raises ValueError if the tool is invalid."""
        if not _TOOL_NAME.fullmatch(spec.name):
            raise ValueError("its name must be 1 to 64 letters, digits, - and _")
        if spec.name in self._tools:
            other = self._tools[spec.name].spec.family
            raise ValueError("the name is taken" + (f" by the plugin {other}" if other else ""))
        problem = self._schemas.compile(spec.parameters)
        schema = decode_strictly(spec.parameters)
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ValueError('its parameters must be a schema with "type": "object"')
        return problem

    def _of(self, agent: AgentDef) -> Mapping[str, _Checked]:
        """Returns the agent's tools by name."""
        names = (name for entry in agent.tools for name in self._named(entry))
        found = {name: self._tools[name] for name in names if name in self._tools}
        scopes = {name: one.spec.agent_scope for name, one in found.items()}
        return {name: found[name] for name, ids in scopes.items() if not ids or agent.id in ids}

    def _named(self, entry: str) -> Sequence[str]:
        """Returns the tools that an entry of the list names: a family, else a tool. FAMILY/TOOL names one
        tool of a family."""
        family, _, own = entry.partition("/")
        if entry in self._families or not own:
            return self._families.get(entry, (entry,))
        return [
            name for name in self._families.get(family, ()) if name in {own, f"{family}__{own}"}
        ]

    async def _attempt(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> str:
        tools = self._of(agent)
        # `result` is offered while something is shown in part.
        known = (self._tools if call.name == RESULT else tools).get(call.name)
        if known is None:
            names = ", ".join(tools) or "none"
            raise ToolFailed(f"There is no tool {call.name[:64]!r}. Available tools: {names}.")
        what = f"The arguments of {call.name}"
        try:
            arguments = decode_strictly(call.arguments or "{}")
        except ValueError as error:
            raise ToolFailed(f"{what} are not valid JSON ({error}). Call it again.") from error
        if not isinstance(arguments, dict):
            raise ToolFailed(f"{what} have to be a JSON object.")
        if (problem := known.problem(arguments)) is not None:
            raise ToolFailed(f"{what} are not valid: {problem}. Correct them and call it again.")
        return await known.tool.call(arguments, scope)


def _families(name: str) -> Sequence[str]:
    """Returns the families of a tool. A tool of a server belongs to the server's family and its own."""
    whole = name.partition("/")[0]
    return (whole, name) if whole != name else (name,) if name else ()
