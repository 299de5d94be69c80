"""Writes the journal of a run, and finds where two runs part."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import repeat
from operator import attrgetter
from os.path import commonprefix
from typing import Any

import anyio
from anyio import to_thread

from gateway.agent.driver import RunControl, Withdrawn
from gateway.agent.effects import Job, Moment, Steered, StopRequested, TurnEvent
from gateway.agent.journal import PART, RunJournal, retry_store
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed
from gateway.domain.ids import RunId, to_micros
from gateway.domain.journal import (
    GRANTS,
    MOST_BYTES,
    Attempt,
    JournalEntry,
    attempt_of,
    grants_of,
    pack_text,
)
from gateway.domain.messages import Message, Spent, ToolCall
from gateway.domain.model import ModelReply, ModelRequest, ToolSpec
from gateway.domain.ports import Clock, Decode, Encode, Journal
from gateway.domain.scrubbing import STARS, scanner

_BETWEEN = "\1"
_SHOWN = 60  # characters of a text from where it differs


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part, as words, and what stands there in each."""

    at: str
    recorded: object
    now: object
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class RequestParts:
    """`tools` and `messages` are digests: by name, and by place with the role in front."""

    settings: Mapping[str, object] = field(default_factory=dict)
    system: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    def since(self, before: "RequestParts") -> dict[str, object]:
        """As plain as it gets: only what is another than before."""
        kept = len(commonprefix((before.messages, self.messages)))
        told: dict[str, object] = {"kept": kept, "messages": list(self.messages[kept:])}
        for name in ("settings", "system", "tools"):
            if getattr(self, name) != getattr(before, name):
                told[name] = getattr(self, name)
        return told

    def then(self, told: Mapping[str, object]) -> "RequestParts":
        """The inverse; raises ValueError for what `since` never gives."""
        match {**asdict(self), **told}:
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
    return RequestParts(settings, request.system, _tools(request.tools), _digests(request.messages))


def parts_at(job: Job) -> RequestParts:
    """What is known before anything is asked."""
    context = job.context
    return RequestParts({}, context.system, _tools(job.tools), _digests(context.messages))


def _tools(tools: Sequence[ToolSpec]) -> Mapping[str, str]:
    return {tool.name: _digest(f"{tool.description}\0{tool.parameters}") for tool in tools}


def _digests(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple([(one.kept.get("digest") or _message(one)).decode() for one in messages])


def _message(message: Message) -> bytes:
    """Made once in a message's life. A model is not told how long a call took."""
    result, extras = message.result, message.extras
    told = [message.text, message.thinking, extras.json if extras else ""]
    if message.tool_calls:
        told += [f"{call.id}\0{call.name}\0{call.arguments}" for call in message.tool_calls]
    if result is not None:
        told += [result.call_id, result.name, result.told, str(result.is_error)]
    digest = message.kept["digest"] = f"{message.role} {_digest(_BETWEEN.join(told))}".encode()
    return digest


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def parted(call: str, recorded: RequestParts, now: RequestParts, soul: str) -> Difference | None:
    """The first part that is another; `call` and `soul` name the call and the soul's file."""
    if (other := unequal(recorded.settings, now.settings)) is not None:
        return Difference(f"{call}: the setting {other.at}", other.recorded, other.now)
    if list(recorded.tools) != list(now.tools):
        return Difference(f"{call}: the tools offered", list(recorded.tools), list(now.tools))
    if recorded.system != now.system:
        where = f"{call}: the system text (soul {soul})"
        return apart(where, recorded.system, now.system)
    for name, digest in recorded.tools.items():
        if now.tools[name] != digest:
            told = f"{call}: the description or the parameters of the tool {name}"
            return Difference(told, digest, now.tools[name])
    if recorded.messages != now.messages:
        place = len(commonprefix((recorded.messages, now.messages)))
        one, other_one = (
            messages[place] if place < len(messages) else None
            for messages in (recorded.messages, now.messages)
        )
        return Difference(f"{call}: message {place + 1} of the request", one, other_one)
    return None


def apart(where: str, recorded: str, now: str) -> Difference:
    """From the first character on that is another."""
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


log = logging.getLogger(__name__)

_LONG, _LONG_PACKED = 256 * 1024, 16 * 1024  # bytes that are packed and unpacked in a thread
_ENTRY_BYTES = 32  # that an entry takes besides its texts
_TEXTS = frozenset({"bytes", "text", "thinking"})

Pack = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class EarlierAttempts:
    """What earlier attempts of a run left: entries, and in how many parts."""

    entries: Sequence[JournalEntry] = ()
    parts: int = 0


NONE = EarlierAttempts()


class RecordedJournal(RunJournal):
    """The journal of a run that is answered for a conversation. It is written in parts: before
    what was granted takes effect, and with the end of the run."""

    is_recorded = True

    def __init__(
        self,
        run_id: RunId,
        clock: Clock,
        store: Journal,
        encode: Encode,
        earlier: EarlierAttempts = NONE,
    ) -> None:
        super().__init__(clock, earlier.entries)
        self._run_id, self._store, self._encode = run_id, store, encode
        self._parts = earlier.parts
        self.lines: list[Line] = []  # not written yet; bytes are chunks
        self._asked = RequestParts()
        self._writing = anyio.Lock()
        self._secrets: set[str] = set()
        self._size = self._packed = 0  # of texts that only a replay reads

    def begin(self, attempt: int, asked: Sequence[RunId], control: RunControl) -> Moment:
        """Begins an attempt; from now on it takes down what others do with the run."""
        self.lines.append(("attempt", (attempt, list(asked))))
        moment = self.moment()
        for one in control.requests:
            self._requested(one)
        control.on_request = self._requested
        return moment

    def _requested(self, one: StopRequested | Steered | Withdrawn) -> None:
        match one:
            case StopRequested(reason, at_once):
                self("stop", reason, at_once)
            case Steered(run_id, text):
                self("said", run_id, text)
            case Withdrawn(run_id):
                self("unsaid", run_id)

    def __call__(self, kind: str, *values: object) -> None:
        if kind == "sent":
            self.has_sent = True
        elif kind in _TEXTS:
            self._size += len(values[0]) + _ENTRY_BYTES  # type: ignore[arg-type]  # it is a text
        self.lines.append((kind, values))

    def grant(self, kind: str, *values: object) -> None:
        self.lines.append((kind, values))

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
        self.lines.append(("told", (names(events),)))

    def asks(self, request: ModelRequest) -> None:
        asked, self._asked = self._asked, parts_of(request)
        self.lines.append(("ask", (self._asked.since(asked),)))
        self.has_sent = False

    def replied(self, step: int, reply: ModelReply) -> None:
        has_bytes, usage = self.has_sent, reply.usage
        if has_bytes and (
            reply.warnings or reply.finish == "overrun" or usage.cost_usd is not None
        ):
            warnings = [asdict(one) for one in reply.warnings]
            overrun = asdict(usage) if reply.finish == "overrun" else None
            self("metered", usage.cost_usd, warnings, overrun)
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
        async with (
            self._writing
        ):  # one part after the other, so that none is missing before another
            lines = tuple(self.lines)
            if lines:
                pack = await self._packing(lines)
                append, run_id = self._store.append, self._run_id
                await retry_store(self.clock, append, run_id, self._parts, pack)
                del self.lines[: len(lines)]  # written for certain; else the next part has them too
                self._parts += 1
        if not what.startswith(PART):
            self.lines.append(("kept", (what,)))

    async def last_part(self) -> tuple[int, Pack]:
        """The number and the text of what was not written yet."""
        return self._parts, await self._packing(tuple(self.lines))

    async def _packing(self, lines: Sequence["Line"]) -> Pack:
        """A part is packed where the store writes it, which holds up nobody else; a long one in a
        thread, because the store serves others."""
        size, self._packed = self._size - self._packed + sum(map(len, lines)), self._size
        secrets, is_cut = tuple(sorted(self._secrets)), self._size > MOST_BYTES
        pack = partial(packed, lines, self._encode, secrets, is_cut=is_cut)
        if size < _LONG:
            return pack
        done = await to_thread.run_sync(pack)
        return lambda: done


Line = bytes | tuple[str, tuple[Any, ...]]  # a chunk, or an entry


def packed(
    lines: Sequence[Line], encode: Encode, secrets: Sequence[str] = (), *, is_cut: bool = False
) -> bytes:
    """A part of a journal, with every secret blotted out. What has no form is left out, and the run
    cannot be replayed: it ends all the same."""
    text = _as_text(lines, secrets)
    packed_lines, at, is_broken = list[bytes](), 0, False
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


def _as_text(lines: Sequence[Line], secrets: Sequence[str]) -> str:
    """All bytes of providers, a character a byte, without any secret, also one that came in two
    pieces."""
    whole = b"".join([one[1][0] for one in lines if one[0] == "bytes"])  # type: ignore[index]  # the values of an entry
    if whole and secrets:
        whole = scanner(tuple(zip(secrets, repeat(STARS), strict=False))).data(whole)
    return whole.decode("latin-1")


async def earlier_attempts(
    run_id: RunId, store: Journal, clock: Clock, decode: Decode
) -> EarlierAttempts:
    parts = await retry_store(clock, store.read, run_id)
    return EarlierAttempts(grants_of(parts, decode), len(parts))


async def last_attempt(parts: Sequence[bytes], decode: Decode) -> Attempt:
    """Raises JournalUnreadable. A long journal is read in a thread."""
    if sum(map(len, parts)) < _LONG_PACKED:
        return attempt_of(parts, decode)
    return await to_thread.run_sync(attempt_of, parts, decode)


_NAME = attrgetter("__name__")


def names(events: Sequence[TurnEvent]) -> list[str]:
    return list(map(_NAME, map(type, events)))


def failure_values(failed: ModelFailed) -> dict[str, object]:
    names_ = ("provider", "kind", "detail", "started", "status", "retry_after_s")
    return {name: getattr(failed, name) for name in names_}


def refusal_values(refusal: BudgetExceeded) -> tuple[object, ...]:
    tally, unit = refusal.tally, refusal.unit
    of_unit = attrgetter("tokens" if unit == "tokens" else "nano_usd")
    spent = (of_unit(tally.used), refusal.bound, of_unit(tally.held), refusal.retry_after_s)
    return tally.scope.kind, tally.scope.name, unit, *spent
