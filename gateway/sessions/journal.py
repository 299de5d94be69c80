"""The journal of a run: requests as digests, the run's inputs, packed text; and how two runs differ."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import repeat, zip_longest
from operator import attrgetter, itemgetter
from os.path import commonprefix
from typing import Any

import anyio
from anyio import to_thread

from gateway.agent.driver import PART, RunJournal
from gateway.agent.effects import Job, Moment
from gateway.codec import decode, encode
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import BadSessionKey, ModelFailed
from gateway.domain.events import Batching, Notice
from gateway.domain.facts import Fact, Recalled
from gateway.domain.ids import EPOCH, MICROSECOND, RunId, SessionKey, to_time
from gateway.domain.journal import (
    GRANTS,
    MOST_BYTES,
    Attempt,
    JournalEntry,
    attempt_of,
    damaged,
    pack,
)
from gateway.domain.mcp import UnreachableServer
from gateway.domain.messages import Message
from gateway.domain.model import ModelReply, ModelRequest, ToolSpec
from gateway.domain.ports import Clock, Journal
from gateway.domain.scrubbing import STARS, scanner
from gateway.domain.supervision import retry_store

log = logging.getLogger(__name__)

_BETWEEN = "\1"  # separates the parts of a message
_SHOWN = 60  # characters of a text from the first difference
_LONG_PACKED = 16 * 1024  # bytes; a thread unpacks longer journals
_LONG = 256 * 1024  # bytes; a thread packs longer parts
_ENTRY_BYTES = 32  # overhead of an entry
_TEXTS = frozenset({"bytes", "text", "thinking"})
FAILURE = ("provider", "kind", "detail", "started", "status", "retry_after_s")

Pack = Callable[[], bytes]


# -- differences


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two runs differ, in words, and the value of each run there."""

    at: str
    recorded: object
    now: object
    seq: int | None = None


def text_difference(where: str, recorded: str, now: str) -> Difference:
    """Returns the difference of two texts, from the first different character on."""
    place = len(commonprefix((recorded, now)))
    shown = slice(place, place + _SHOWN)
    return Difference(f"{where}, character {place + 1}", recorded[shown], now[shown])


def value_difference(recorded: object, now: object, name: str = "") -> Difference | None:
    """Returns the first different value in nested mappings, under its dotted name."""
    if not isinstance(recorded, Mapping) or not isinstance(now, Mapping):
        return None if recorded == now else Difference(name, recorded, now)
    for key in (*recorded, *(key for key in now if key not in recorded)):
        path = f"{name}.{key}" if name else str(key)
        found = value_difference(recorded.get(key), now.get(key), path)
        if found is not None:
            return found
    return None


# -- requests


# A request in a journal: settings, system text, digests of tools by name, digests of messages.
RequestParts = Mapping[str, Any]
NO_REQUEST: RequestParts = {"settings": {}, "system": "", "tools": {}, "messages": []}
_SETTINGS = ("provider", "model", "max_tokens", "temperature", "thinking", "stream")
_settings_of = attrgetter(*_SETTINGS)
_KEPT, _DIGEST = attrgetter("kept"), itemgetter("digest")


def parts_of(request: ModelRequest) -> RequestParts:
    for one in request.messages:
        if "digest" not in one.kept:
            _digest(one)
    return {
        "settings": dict(zip(_SETTINGS, _settings_of(request), strict=True)),
        "system": request.system,
        "tools": _tools(request.tools),
        "messages": [*map(_DIGEST, map(_KEPT, request.messages))],
    }


def parts_at(job: Job) -> RequestParts:
    """Returns the known parts of the first request before it is made."""
    context = job.context
    messages = list(map(_digest, context.messages))
    return {"system": context.system, "tools": _tools(job.tools), "messages": messages}


def parts_after(before: RequestParts, changes: Mapping[str, object]) -> RequestParts:
    """Applies the changes of a journal entry to the request before. Raises ValueError."""
    match {**before, "messages": None, **changes}:
        case {
            "settings": dict(),
            "system": str(),
            "tools": dict(),
            "kept": int(kept),
            "messages": list(more),
        } as parts:
            del parts["kept"]
            return {**parts, "messages": [*before["messages"][:kept], *more]}
        case _:
            raise ValueError("the journal holds an invalid request")


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> Mapping[str, str]:
    digests: dict[str, str] = {}
    for tool in tools:
        text = f"{tool.description}\0{tool.parameters}".encode("utf-8", "surrogatepass")
        digests[tool.name] = blake2b(text, digest_size=8).hexdigest()
    return digests


def _digest(message: Message) -> str:
    """Makes and keeps the digest of a message. The duration of a call is left out: no model sees it."""
    result, extras = message.result, message.extras
    parts = [message.text, message.thinking, extras.json if extras else ""]
    if message.tool_calls:
        parts += [f"{call.id}\0{call.name}\0{call.arguments}" for call in message.tool_calls]
    if result is not None:
        parts += [result.call_id, result.name, result.for_model, str(result.is_error)]
    text = _BETWEEN.join(parts).encode("utf-8", "surrogatepass")
    digest = f"{message.role} {blake2b(text, digest_size=8).hexdigest()}"
    message.kept["digest"] = digest
    return digest


def request_difference(
    call: str, recorded: RequestParts, now: RequestParts, soul: str
) -> Difference | None:
    """Returns the first difference of two requests. `call` and `soul` name the call and the soul's file."""
    settings = value_difference(recorded.get("settings"), now.get("settings"))
    tools, names = (recorded["tools"], now["tools"]), (list(recorded["tools"]), list(now["tools"]))
    if settings is not None:
        return replace(settings, at=f"{call}: the setting {settings.at}")
    if names[0] != names[1]:
        return Difference(f"{call}: the tools offered", *names)
    if recorded["system"] != now["system"]:
        return text_difference(
            f"{call}: the system text (soul {soul})", recorded["system"], now["system"]
        )
    if (tool := value_difference(*tools)) is not None:
        return replace(tool, at=f"{call}: the description or the parameters of the tool {tool.at}")
    pairs = zip_longest(recorded["messages"], now["messages"])
    for place, (one, other) in enumerate(pairs, 1):
        if one != other:
            return Difference(f"{call}: message {place} of the request", one, other)
    return None


# -- the inputs of a run


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The inputs of a run besides the conversation. A replay uses them again."""

    notices: tuple[Notice, ...] = ()  # from other sessions
    kept: Mapping[str, object] = field(default_factory=dict)  # state of the session's rules
    recalled: tuple[Recalled, ...] = ()
    missing: str = ""  # why nothing was recalled
    lacking: tuple[UnreachableServer, ...] = ()  # missing tool servers

    def plain(self) -> dict[str, object]:
        """Returns the fields that are not empty. The store encodes the values when it writes them."""
        plain = {}
        for name in self.__slots__:
            if value := getattr(self, name):
                plain[name] = value
        return plain


def read_inputs(attempt: Attempt) -> RunInputs:
    """Returns the inputs of the recorded run. Raises JournalUnreadable."""
    begun = (one.values[1] for one in attempt.entries if one.kind == "begin")
    plain: Mapping[str, Any] = next(begun, {})
    try:
        return RunInputs(
            tuple(Notice(**_values(one)) for one in plain.get("notices", ())),
            plain.get("kept", {}),
            tuple(Recalled(**_values(one)) for one in plain.get("recalled", ())),
            plain.get("missing", ""),
            tuple(
                UnreachableServer(**one) if isinstance(one, dict) else UnreachableServer(*one)
                for one in plain.get("lacking", ())
            ),
        )
    except (TypeError, ValueError, AttributeError, OverflowError, BadSessionKey) as error:
        raise damaged(error) from error


def _time(plain: int | str) -> datetime:
    """Reads a time. An earlier version wrote times as numbers, and keys as text."""
    return to_time(plain) if isinstance(plain, int) else datetime.fromisoformat(plain)


def _key(plain: str | Sequence[str]) -> SessionKey:
    return SessionKey.parse(plain) if isinstance(plain, str) else SessionKey._make(plain)


# Readers of the fields that JSON has no type for.
_READ: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("expires_at", "at", "learned_at"), _time),
    **dict.fromkeys(("valid_from", "valid_to", "superseded_at"), _time),
    "session_key": _key,
    "source_message_ids": tuple,
    "batching": lambda plain: Batching(**plain),
    "fact": lambda plain: Fact(**_values(plain)),
}


def _values(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _READ[name](value) if name in _READ and value is not None else value
        for name, value in plain.items()
    }


# -- parts of the text

Line = bytes | tuple[str, tuple[Any, ...]]  # a chunk, or an entry


def _provider_text(lines: Sequence[Line], secrets: Sequence[str]) -> str:
    """Returns all bytes of providers, one character a byte, without secrets. A secret may have come in two
    pieces."""
    whole = bytearray()
    for one in lines:
        if isinstance(one, tuple) and one[0] == "bytes":
            whole += one[1][0]
    data = bytes(whole)
    if data and secrets:
        data = scanner(tuple(zip(secrets, repeat(STARS), strict=False))).data(data)
    return data.decode("latin-1")


def packed(lines: Sequence[Line], secrets: Sequence[str] = (), *, is_cut: bool = False) -> bytes:
    """Returns a part of a journal without secrets. An entry that cannot be encoded is left out; then the
    run cannot be replayed."""
    text, at, is_broken = _provider_text(lines, secrets), 0, False
    packed_lines: list[bytes] = []
    for one in lines:
        if isinstance(one, bytes):
            packed_lines.append(one)
            continue
        kind, values = one
        if kind == "bytes":
            values, at = (text[at : at + len(values[0])],), at + len(values[0])
        if is_cut and kind not in GRANTS:
            continue
        try:
            packed_lines.append(encode([kind, *values]))
        except ValueError as error:
            log.warning("run_not_recorded", extra={"why": str(error)})
            is_broken = True
    if is_cut or is_broken:
        packed_lines.append(encode(["cut"]))
    return pack(b"\n".join(packed_lines))


async def last_attempt(parts: Sequence[bytes]) -> Attempt:
    """Reads the last attempt; a long journal in a thread. Raises JournalUnreadable."""
    if sum(map(len, parts)) < _LONG_PACKED:
        return attempt_of(parts, decode)
    return await to_thread.run_sync(attempt_of, parts, decode)


# -- the recorded journal


class RecordedJournal(RunJournal):
    """The journal of a run that belongs to a conversation. It is written in parts: before a grant takes
    effect, and with the end of the run. Earlier attempts left `parts`, with the entries `granted`."""

    is_recorded = True

    def __init__(
        self,
        run_id: RunId,
        clock: Clock,
        store: Journal,
        *,
        granted: Sequence[JournalEntry] = (),
        parts: int = 0,
    ) -> None:
        super().__init__(clock, granted)
        self._run_id, self._store, self._parts = run_id, store, parts
        self.lines: list[Line] = []  # unwritten chunks (bytes) and entries
        self._asked = NO_REQUEST
        self._writing: anyio.Lock | None = None  # made by the first grant
        self._secrets: set[str] = set()
        self._size = self._packed = 0  # bytes of texts that only a replay reads

    def __call__(self, kind: str, *values: object) -> None:
        if kind == "sent":
            self.has_sent = True
        elif kind in _TEXTS:
            self._size += len(values[0]) + _ENTRY_BYTES  # type: ignore[arg-type]  # a text or bytes
        self.lines.append((kind, values))

    def hide(self, *secrets: str) -> None:
        self._secrets.update(secrets)

    def moment(self) -> Moment:
        moment = Moment(self.clock.now(), self.clock.monotonic())
        self.lines.append(("at", ((moment.wall - EPOCH) // MICROSECOND, moment.at)))
        return moment

    def asks(self, request: ModelRequest) -> None:
        parts, before = parts_of(request), self._asked
        messages: list[str] = parts["messages"]
        kept = len(commonprefix((before["messages"], messages)))
        changes: dict[str, object] = {"kept": kept, "messages": messages[kept:]}
        for name in ("settings", "system", "tools"):
            if parts[name] != before[name]:
                changes[name] = parts[name]
        self("ask", changes)
        self._asked, self.has_sent = parts, False

    def replied(self, step: int, reply: ModelReply) -> None:
        has_bytes, usage, is_overrun = self.has_sent, reply.usage, reply.finish == "overrun"
        if has_bytes and (reply.warnings or is_overrun or usage.cost_usd is not None):
            warnings = [asdict(one) for one in reply.warnings] if reply.warnings else []
            self("metered", usage.cost_usd, warnings, asdict(usage) if is_overrun else None)
        self("reply", step, None if has_bytes and not reply.tool_calls else asdict(reply))

    def failed(self, failure: Exception) -> None:
        if isinstance(failure, BudgetExceeded):
            tally, unit = failure.tally, failure.unit
            amounts = (tally.used.of(unit), failure.bound, tally.held.of(unit))
            self("refused", *tally.scope, unit, *amounts, failure.retry_after_s)
        elif isinstance(failure, ModelFailed):
            known = {name: getattr(failure, name) for name in FAILURE}
            self("failed", {**known, "attempts": failure.attempts})

    async def grant(self, name: str, kind: str, *values: object) -> None:
        if kind != "reply":  # `replied` has added that
            self(kind, *values)
        self._writing = self._writing or anyio.Lock()
        async with self._writing:  # parts are written in order, so that none is missing
            if count := len(self.lines):
                part, pack = await self.last_part()
                at = self.tick()
                await retry_store(self.clock, self._store.append, self._run_id, part, pack)
                self.store_s += self.tick() - at
                del self.lines[:count]  # only after the write: else the next part repeats them
                self._parts += 1
        if not name.startswith(PART):
            self("kept", name)

    async def last_part(self) -> tuple[int, Pack]:
        """Returns the number of the unwritten part, and a function that packs it. The store's writer packs
        a short part; a thread packs a long one, so that other writes do not wait."""
        part, lines = self._parts, tuple(self.lines)
        size, self._packed = self._size - self._packed + sum(map(len, lines)), self._size
        secrets, is_cut = tuple(sorted(self._secrets)), self._size > MOST_BYTES
        pack = partial(packed, lines, secrets, is_cut=is_cut)
        if size < _LONG:
            return part, pack
        done = await to_thread.run_sync(pack)
        return part, lambda: done
