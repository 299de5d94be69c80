"""The parts of a run's journal: requests as digests, what a run read, packed text; and how two runs differ."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import repeat
from os.path import commonprefix
from typing import Any

import anyio
from anyio import to_thread

from gateway.agent.driver import RunControl, Withdrawn
from gateway.agent.effects import Job, Moment, Steered, StopRequested, TurnEvent
from gateway.agent.journal import PART, RunJournal, retry_store
from gateway.codec import decode, encode
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import BadSessionKey, ModelFailed
from gateway.domain.events import Batching, Notice
from gateway.domain.facts import Fact, Recalled
from gateway.domain.ids import RunId, SessionKey, to_micros, to_time
from gateway.domain.journal import (
    GRANTS,
    MOST_BYTES,
    Attempt,
    JournalEntry,
    attempt_of,
    damaged,
    pack_text,
)
from gateway.domain.mcp import Lacking
from gateway.domain.messages import Message, Spent, ToolCall
from gateway.domain.model import ModelReply, ModelRequest, ToolSpec
from gateway.domain.ports import Clock, Journal
from gateway.domain.scrubbing import STARS, scanner

log = logging.getLogger(__name__)

_BETWEEN = "\1"  # the parts of a message
_SHOWN = 60  # characters of a text from where it differs
_LONG_PACKED = 16 * 1024  # bytes that are unpacked in a thread
_LONG = 256 * 1024  # bytes that are packed in a thread
_ENTRY_BYTES = 32  # that an entry takes besides its texts
_REQUESTS = {StopRequested: "stop", Steered: "said", Withdrawn: "unsaid"}
_TEXTS = frozenset({"bytes", "text", "thinking"})

Pack = Callable[[], bytes]


# -- differences


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs differ first, as words, and what stands there in each."""

    at: str
    recorded: object
    now: object
    seq: int | None = None


def apart(where: str, recorded: str, now: str) -> Difference:
    """The difference from the first character on that is another."""
    place = len(commonprefix((recorded, now)))
    shown = slice(place, place + _SHOWN)
    return Difference(f"{where}, character {place + 1}", recorded[shown], now[shown])


def unequal(recorded: object, now: object, name: str = "") -> Difference | None:
    """The first value in nested mappings that is another, under its dotted name."""
    if not isinstance(recorded, Mapping) or not isinstance(now, Mapping):
        return None if recorded == now else Difference(name, recorded, now)
    for key in (*recorded, *(key for key in now if key not in recorded)):
        path = f"{name}.{key}" if name else str(key)
        found = unequal(recorded.get(key), now.get(key), path)
        if found is not None:
            return found
    return None


# -- requests


@dataclass(frozen=True, slots=True)
class RequestParts:
    """`tools` and `messages` are digests: by name, and by place with the role in front."""

    settings: Mapping[str, object] = field(default_factory=dict)
    system: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    def since(self, before: "RequestParts") -> dict[str, object]:
        """What differs from the request before, as plain values."""
        kept = len(commonprefix((before.messages, self.messages)))
        changes: dict[str, object] = {"kept": kept, "messages": list(self.messages[kept:])}
        for name in ("settings", "system", "tools"):
            if getattr(self, name) != getattr(before, name):
                changes[name] = getattr(self, name)
        return changes

    def then(self, changes: Mapping[str, object]) -> "RequestParts":
        """The inverse; raises ValueError for what `since` never gives."""
        match {**asdict(self), **changes}:
            case {
                "settings": dict(settings),
                "system": str(system),
                "tools": dict(tools),
                "kept": int(kept),
                "messages": list(messages),
            }:
                return RequestParts(settings, system, tools, (*self.messages[:kept], *messages))
            case _:
                raise ValueError("it holds a request that is none")


def parts_of(request: ModelRequest) -> RequestParts:
    settings = {
        "provider": request.provider,
        "model": request.model,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "thinking": request.thinking,
        "stream": request.stream,
    }
    messages = tuple([one.kept.get("digest") or _digest(one) for one in request.messages])
    return RequestParts(settings, request.system, _tools(request.tools), messages)


def parts_at(job: Job) -> RequestParts:
    """What is known of the first request before it is made."""
    messages = tuple(map(_digest, job.context.messages))
    return RequestParts({}, job.context.system, _tools(job.tools), messages)


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> Mapping[str, str]:
    return {tool.name: _hashed(f"{tool.description}\0{tool.parameters}") for tool in tools}


def _digest(message: Message) -> str:
    """Is made once in a message's life. A model is not told how long a call took."""
    result, extras = message.result, message.extras
    parts = [message.text, message.thinking, extras.json if extras else ""]
    if message.tool_calls:
        parts += [f"{call.id}\0{call.name}\0{call.arguments}" for call in message.tool_calls]
    if result is not None:
        parts += [result.call_id, result.name, result.told, str(result.is_error)]
    digest = message.kept["digest"] = f"{message.role} {_hashed(_BETWEEN.join(parts))}"
    return digest


def _hashed(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def parted(call: str, recorded: RequestParts, now: RequestParts, soul: str) -> Difference | None:
    """The first part that is another; `call` and `soul` name the call and the soul's file."""
    if (other := unequal(recorded.settings, now.settings)) is not None:
        return Difference(f"{call}: the setting {other.at}", other.recorded, other.now)
    if list(recorded.tools) != list(now.tools):
        return Difference(f"{call}: the tools offered", list(recorded.tools), list(now.tools))
    if recorded.system != now.system:
        return apart(f"{call}: the system text (soul {soul})", recorded.system, now.system)
    if (other := unequal(recorded.tools, now.tools)) is not None:
        where = f"{call}: the description or the parameters of the tool {other.at}"
        return Difference(where, other.recorded, other.now)
    if recorded.messages == now.messages:
        return None
    place = len(commonprefix((recorded.messages, now.messages)))
    here = slice(place, place + 1)
    first, second = ("".join(one.messages[here]) or None for one in (recorded, now))
    return Difference(f"{call}: message {place + 1} of the request", first, second)


# -- what a run read


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What a run read before it began, besides the conversation: a replay reads the same again."""

    notices: tuple[Notice, ...] = ()  # from other sessions
    kept: Mapping[str, object] = field(default_factory=dict)  # by rules, of this session
    recalled: tuple[Recalled, ...] = ()
    missing: str = ""  # why nothing was recalled
    lacking: tuple[Lacking, ...] = ()  # tool servers that were not there

    def plain(self) -> dict[str, object]:
        """Without what is empty, as it mostly is."""
        plain = {}
        for name in self.__slots__:
            if value := getattr(self, name):
                plain[name] = _plain(value)
        return plain


def read_in(attempt: Attempt) -> RunInputs:
    """What the recorded run read. Raises JournalUnreadable."""
    begun = (one.values[1] for one in attempt.entries if one.kind == "begin")
    plain: Mapping[str, Any] = next(begun, {})
    try:
        return RunInputs(
            tuple(Notice(**_values(one)) for one in plain.get("notices", ())),
            plain.get("kept", {}),
            tuple(Recalled(**_values(one)) for one in plain.get("recalled", ())),
            plain.get("missing", ""),
            tuple(
                Lacking(**one) if isinstance(one, dict) else Lacking(*one)
                for one in plain.get("lacking", ())
            ),
        )
    except (TypeError, ValueError, AttributeError, OverflowError, BadSessionKey) as error:
        raise damaged(error) from error


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return to_micros(value)
    if isinstance(value, SessionKey):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value


# How a field is read that JSON has no type for; the other fields are as they stand there.
_READ: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("expires_at", "at", "learned_at"), to_time),
    **dict.fromkeys(("valid_from", "valid_to", "superseded_at"), to_time),
    "session_key": SessionKey.parse,
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
    """All bytes of providers, a character a byte, without any secret, also one that came in two
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
    """A part of a journal, with every secret blotted out. What has no form is left out, and the run
    cannot be replayed: it ends all the same."""
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
            log.warning("a run cannot be recorded", extra={"why": str(error)})
            is_broken = True
    if is_cut or is_broken:
        packed_lines.append(encode(["cut"]))
    return pack_text(packed_lines)


async def last_attempt(parts: Sequence[bytes]) -> Attempt:
    """Raises JournalUnreadable. A long journal is read in a thread."""
    if sum(map(len, parts)) < _LONG_PACKED:
        return attempt_of(parts, decode)
    return await to_thread.run_sync(attempt_of, parts, decode)


def failure_values(failed: ModelFailed) -> dict[str, object]:
    known = ("provider", "kind", "detail", "started", "status", "retry_after_s")
    return {name: getattr(failed, name) for name in known}


def refusal_values(refusal: BudgetExceeded) -> tuple[object, ...]:
    tally, scope, unit = refusal.tally, refusal.tally.scope, refusal.unit
    name = "tokens" if unit == "tokens" else "nano_usd"
    used, held = getattr(tally.used, name), getattr(tally.held, name)
    return scope.kind, scope.name, unit, used, refusal.bound, held, refusal.retry_after_s


# -- the journal of a run that is kept


class RecordedJournal(RunJournal):
    """The journal of a run that is answered for a conversation. It is written in parts: before
    what was granted takes effect, and with the end of the run. Earlier attempts left so many `parts`,
    and what they were `granted`."""

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
        self.lines: list[Line] = []  # not written yet; bytes are chunks
        self._asked = RequestParts()
        self._writing = anyio.Lock()
        self._secrets: set[str] = set()
        self._size = self._packed = 0  # of texts that only a replay reads

    def begin(self, attempt: int, asked: Sequence[RunId], control: RunControl) -> Moment:
        """Begins an attempt, which answers these runs. From now on the requests of others are recorded."""
        self.lines.append(("attempt", (attempt, list(asked))))
        moment = self.moment()
        for one in control.requests:
            self._requested(one)
        control.on_request = self._requested
        return moment

    def _requested(self, one: StopRequested | Steered | Withdrawn) -> None:
        self(_REQUESTS[type(one)], *astuple(one))

    def __call__(self, kind: str, *values: object) -> None:
        if kind == "sent":
            self.has_sent = True
        elif kind in _TEXTS:
            self._size += len(values[0]) + _ENTRY_BYTES  # type: ignore[arg-type]  # it is a text
        self.lines.append((kind, values))

    grant = __call__  # no kind of a grant is a text, or sent

    def hide(self, *secrets: str) -> None:
        self._secrets.update(secrets)

    def moment(self) -> Moment:
        moment = Moment(self.clock.now(), self.clock.monotonic())
        self.lines.append(("at", (to_micros(moment.wall), moment.at)))
        return moment

    async def begins(
        self, job: Job, scene: Mapping[str, object], read: Mapping[str, object]
    ) -> None:
        self.lines.append(("begin", (scene, read)))

    def tells(self, events: Sequence[TurnEvent]) -> None:
        self.lines.append(("told", ([type(event).__name__ for event in events],)))

    def asks(self, request: ModelRequest) -> None:
        parts = parts_of(request)
        self.lines.append(("ask", (parts.since(self._asked),)))
        self._asked, self.has_sent = parts, False

    def replied(self, step: int, reply: ModelReply) -> None:
        has_bytes, usage, is_overrun = self.has_sent, reply.usage, reply.finish == "overrun"
        if has_bytes and (reply.warnings or is_overrun or usage.cost_usd is not None):
            warnings = [asdict(one) for one in reply.warnings] if reply.warnings else []
            self("metered", usage.cost_usd, warnings, asdict(usage) if is_overrun else None)
        plain = None if has_bytes and not reply.tool_calls else asdict(reply)
        self.lines.append(("reply", (step, plain)))

    def failed(self, failure: Exception) -> None:
        if isinstance(failure, BudgetExceeded):
            self("refused", *refusal_values(failure))
        elif isinstance(failure, ModelFailed):
            self("failed", None if self.has_sent else failure_values(failure))

    def spends(self, call: ToolCall, spent: Spent) -> None:
        self("spent", call.id, [asdict(spent)])

    def ends(self) -> None:
        self.lines.append(("over", ()))

    async def keep(self, what: str) -> None:
        async with self._writing:  # one part after the other, so that none is missing
            if count := len(self.lines):
                part, pack = await self.last_part()
                await retry_store(self.clock, self._store.append, self._run_id, part, pack)
                del self.lines[:count]  # written for certain; else the next part has them too
                self._parts += 1
        if not what.startswith(PART):
            self("kept", what)

    async def last_part(self) -> tuple[int, Pack]:
        """The number of the part that is not written yet, and its text. A part is packed where the
        store writes it, which holds up nobody else; a long one in a thread, because the store
        serves others."""
        part, lines = self._parts, tuple(self.lines)
        size, self._packed = self._size - self._packed + sum(map(len, lines)), self._size
        secrets, is_cut = tuple(sorted(self._secrets)), self._size > MOST_BYTES
        pack = partial(packed, lines, secrets, is_cut=is_cut)
        if size < _LONG:
            return part, pack
        done = await to_thread.run_sync(pack)
        return part, lambda: done
