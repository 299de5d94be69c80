"""Takes down what a run is told and what a model is asked."""

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from io import BytesIO
from itertools import repeat
from operator import attrgetter
from os.path import commonprefix

from anyio import to_thread

from gateway.agent.driver import News, Pace
from gateway.agent.effects import Gate, Job, Reins, Said, Stop, Told, Unsaid
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import GatewayError, ModelFailed
from gateway.domain.events import Notice, NoticeBoard, RuleStates
from gateway.domain.ids import RunId, SessionKey, to_micros
from gateway.domain.inbox import JournalNote
from gateway.domain.mcp import Lacking
from gateway.domain.messages import Message, Spent, ToolCall, ToolResult
from gateway.domain.model import Delta, Hear, ModelReply, ModelRequest, TextDelta, ToolSpec
from gateway.domain.ports import (
    Clock,
    Decode,
    Encode,
    Journal,
    Model,
    ToolScope,
)
from gateway.domain.scrubbing import STARS, scanner
from gateway.domain.tape import Mark, MarkKind, Record, Tape, from_plain, to_plain

_SETTINGS = ("provider", "model", "max_tokens", "temperature", "thinking", "stream")
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
class Parts:
    """`tools` and `messages` are digests: by name, and by place with the role in front."""

    settings: Mapping[str, object] = field(default_factory=dict)
    system: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    def since(self, before: "Parts") -> dict[str, object]:
        """As plain as it gets: only what is another than before."""
        kept = len(commonprefix((before.messages, self.messages)))
        told: dict[str, object] = {"kept": kept, "messages": list(self.messages[kept:])}
        for name in ("settings", "system", "tools"):
            if getattr(self, name) != getattr(before, name):
                told[name] = getattr(self, name)
        return told

    def then(self, told: Mapping[str, object]) -> "Parts":
        """The inverse; raises ValueError for what `since` never gives."""
        match {**asdict(self), **told}:
            case {
                "settings": dict(settings),
                "system": str(system),
                "tools": dict(tools),
                "kept": int(kept),
                "messages": list(messages),
            }:
                return Parts(settings, system, tools, (*self.messages[:kept], *messages))
            case _:
                raise ValueError("it holds a request that is none")


def parts_of(request: ModelRequest) -> Parts:
    settings = {name: getattr(request, name) for name in _SETTINGS}
    return Parts(settings, request.system, _tools(request.tools), _messages(request.messages))


def parts_at(job: Job) -> Parts:
    """What is known before anything is asked."""
    return Parts({}, job.context.system, _tools(job.tools), _messages(job.context.messages))


def _tools(tools: Sequence[ToolSpec]) -> Mapping[str, str]:
    return {tool.name: _digest(f"{tool.description}\0{tool.parameters}") for tool in tools}


def _messages(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(map(_message, messages))


def _message(message: Message) -> str:
    """Made once in a message's life. What took how long is nothing that a model is told."""
    kept = message.kept.get("digest")
    if kept is None:
        result, extras = message.result, message.extras
        told = [message.text, message.thinking, extras.json if extras else ""]
        told += [f"{call.id}\0{call.name}\0{call.arguments}" for call in message.tool_calls]
        if result is not None:
            told += [result.call_id, result.name, result.told, str(result.is_error)]
        kept = f"{message.role} {_digest(_BETWEEN.join(told))}".encode()
        message.kept["digest"] = kept
    return kept.decode()


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def parted(call: str, recorded: Parts, now: Parts, soul: str) -> Difference | None:
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

MOST_BYTES = 8 * 1024 * 1024
_LONG = 256 * 1024
_LONG_PACKED = 16 * 1024
# Of what packs, in bits: as large as usual, making it ready takes ten times as long as packing a short tape.
_WINDOW = 13
_A_MARK = 32  # bytes that a mark takes besides its texts
_TEXTS = (bytes, str)


class TapeUnreadable(GatewayError):
    """A recording cannot be played; the text says why."""

    code = "tape_unreadable"


class Recorder:
    """Implements the Record port. A tape that grows beyond `most` bytes is thrown away."""

    def __init__(self, asked: Sequence[str] = (), *, most: int = MOST_BYTES) -> None:
        self._marks: list[Mark] = []  # `bytes` are bytes still
        self._asked = tuple(asked)
        self.left = most
        self._secrets: set[str] = set()
        self.parts = Parts()  # of what was asked last
        self.results: set[str] = set()  # calls whose tools have answered
        self.has_sent = False  # something went over a network since a model was asked

    def __call__(self, kind: MarkKind, *values: object) -> None:
        if self.left < 0:
            return
        self.left -= _A_MARK
        for one in values:
            if isinstance(one, _TEXTS):
                self.left -= len(one)
        if kind in {"ask", "sent"}:
            self.has_sent = kind == "sent"
        self._marks.append(Mark(kind, values))
        if self.left < 0:
            self._marks.clear()

    def listen(self, reins: Reins) -> None:
        """To what others do with a run, from before it began."""

        def heard(one: Stop | Said | Unsaid) -> None:
            match one:
                case Stop(reason, at_once):
                    self("stop", reason, at_once)
                case Said(run_id, text):
                    self("said", run_id, text)
                case Unsaid(run_id):
                    self("unsaid", run_id)

        for one in reins.pulled:
            heard(one)
        reins.heard = heard

    def hide(self, *secrets: str) -> None:
        self._secrets.update(secrets)

    def tape(self) -> Tape:
        """With every secret blotted out, also one that came in two pieces."""
        if self.left < 0:
            return Tape(is_cut=True)
        whole = b"".join([mark.values[0] for mark in self._marks if mark.kind == "bytes"])
        if self._secrets:
            whole = scanner(tuple(zip(sorted(self._secrets), repeat(STARS), strict=False))).data(
                whole
            )
        rest = BytesIO(whole)

        def blotted(mark: Mark) -> Mark:
            return Mark("bytes", (rest.read(len(mark.values[0])).decode("latin-1"),))

        marks = [blotted(mark) if mark.kind == "bytes" else mark for mark in self._marks]
        return Tape(tuple(marks), asked=self._asked)


async def to_be_packed(recorder: Recorder, encode: Encode) -> Callable[[], bytes]:
    """What the store packs where it writes, which holds up nobody else. A long one is packed in a
    thread: the store's others have to go on."""
    if recorder.left > MOST_BYTES - _LONG:
        return partial(_packed_if_it_can, recorder.tape(), encode)
    done = await to_thread.run_sync(lambda: _packed_if_it_can(recorder.tape(), encode))
    return lambda: done


def _packed_if_it_can(tape: Tape, encode: Encode) -> bytes:
    """Empty if it has no form: a run ends all the same."""
    try:
        return packed(tape, encode)
    except ValueError as error:
        log.warning("a run cannot be recorded", extra={"why": str(error)})
        return b""


def packed(tape: Tape, encode: Encode) -> bytes:
    return zlib.compress(encode(to_plain(tape)), 1, _WINDOW)


def unpacked(data: bytes, decode: Decode) -> Tape:
    """Raises TapeUnreadable, also for what would swell beyond what is ever recorded."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, 6 * MOST_BYTES)  # JSON escapes
        if not reader.eof:
            raise ValueError("its end is missing")
        return from_plain(decode(text))
    except (zlib.error, ValueError) as error:
        raise damaged(error) from error


async def unpacked_aside(data: bytes, decode: Decode) -> Tape:
    """A long one in a thread, like `to_be_packed`."""
    if len(data) < _LONG_PACKED:
        return unpacked(data, decode)
    return await to_thread.run_sync(unpacked, data, decode)


def damaged(error: Exception) -> TapeUnreadable:
    return TapeUnreadable(f"the recording is damaged: {error}")


class TapedClock:
    """Implements the Clock port."""

    def __init__(self, clock: Clock, record: Record) -> None:
        self._clock, self._record = clock, record

    def now(self) -> datetime:
        now = self._clock.now()
        self._record("now", to_micros(now))
        return now

    def monotonic(self) -> float:
        seconds = self._clock.monotonic()
        self._record("tick", seconds)
        return seconds

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class TapedModel:
    """Implements the Model port."""

    def __init__(self, model: Model, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        record = self._recorder
        parts = parts_of(request)
        record("ask", parts.since(record.parts))
        record.parts = parts

        def heard(delta: Delta) -> None:
            if not record.has_sent:
                record("text" if isinstance(delta, TextDelta) else "thinking", delta.text)
            hear(delta)

        try:
            reply = await self._model.reply(replace(request, record=record), heard)
        except ModelFailed as failed:
            record("failed", None if record.has_sent else failure_values(failed))
            raise
        except BudgetExceeded as refusal:
            record("refused", *refusal_values(refusal))
            raise
        told = reply.warnings or reply.finish == "overrun" or reply.usage.cost_usd is not None
        if record.has_sent and told:
            _record_metered(record, reply)
        record("reply", None if record.has_sent else asdict(reply))
        return reply


def _record_metered(record: Recorder, reply: ModelReply) -> None:
    """What the bytes of a reply do not say."""
    warnings = [asdict(one) for one in reply.warnings]
    usage = asdict(reply.usage) if reply.finish == "overrun" else None
    record("metered", reply.usage.cost_usd, warnings, usage)


def failure_values(failed: ModelFailed) -> dict[str, object]:
    names = ("provider", "kind", "detail", "started", "status", "retry_after_s")
    return {name: getattr(failed, name) for name in names}


def refusal_values(refusal: BudgetExceeded) -> tuple[object, ...]:
    tally, unit = refusal.tally, refusal.unit
    of_unit = attrgetter("tokens" if unit == "tokens" else "nano_usd")
    spent = (of_unit(tally.used), refusal.bound, of_unit(tally.held), refusal.retry_after_s)
    return tally.scope.kind, tally.scope.name, unit, *spent


class TapedGate:
    """Implements the Gate port."""

    def __init__(self, gate: Gate, record: Recorder) -> None:
        self._gate, self._record = gate, record
        self.offered, self.listed = gate.offered, gate.listed

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        lacking = await self._gate.prepare(agent)
        if lacking:
            self._record("lacking", [[one.server, one.why] for one in lacking])
        return lacking

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        def spend(one: Spent) -> None:
            self._record("spent", call.id, [asdict(one)])
            scope.spend(one)

        result = await self._gate.call(agent, call, replace(scope, spend=spend))
        self._record.results.add(call.id)
        told = (result.content, result.is_error, result.duration_ms)
        shown = (result.boundary, result.excerpt and asdict(result.excerpt))
        self._record("result", call.id, call.name, call.arguments, *told, *shown)
        return result


class TapedPace(Pace):
    """Notes what a turn is told, and when its time had come."""

    def __init__(self, record: Recorder) -> None:
        self._record = record

    async def begins(self, job: Job, scene: Mapping[str, object]) -> None:
        self._record.parts = parts_at(job)
        self._record("begin", scene, self._record.parts.since(Parts()))

    async def wait(self, news: News, seconds: float) -> bool:
        if await super().wait(news, seconds):
            return True
        self._record("late")
        return False

    def tells(self, told: Sequence[Told]) -> None:
        self._record("told", names(told))

    def ends(self) -> None:
        self._record("over")


def names(told: Sequence[Told]) -> list[str]:
    return [type(one).__name__ for one in told]


class TapedStore:
    """Implements the ports Journal, RuleStates and NoticeBoard."""

    def __init__(
        self, journal: Journal, states: RuleStates, board: NoticeBoard, recorder: Recorder
    ) -> None:
        self._journal, self._states, self._board = journal, states, board
        self._record = recorder
        self.forgive = journal.forgive

    async def note(self, run_id: RunId, note: JournalNote) -> None:
        await self._journal.note(run_id, note)
        what, _, call_id = note.kind.partition(":")
        if what == "result" and call_id not in self._record.results:
            self._record("slow", call_id, note.payload)
        self._record("noted", note.step, note.kind)

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        notes = await self._journal.notes(run_id)
        self._record("earlier", [[note.step, note.kind, note.payload] for note in notes])
        return notes

    async def of(self, key: SessionKey) -> str | None:
        kept = await self._states.of(key)
        self._record("kept", kept)
        return kept

    async def claim(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        notices = await self._board.claim(person, session_key, run_id, now=now)
        self._record("waiting", [_plain(notice) for notice in notices])
        return notices


def _plain(notice: Notice) -> dict[str, object]:
    until = notice.expires_at
    return {**asdict(notice), "expires_at": None if until is None else to_micros(until)}
