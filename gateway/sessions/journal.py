"""The parts of a run's journal: requests as digests, what a run read, packed text; and how two runs differ."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from os.path import commonprefix
from typing import Any

from anyio import to_thread

from gateway.agent.effects import Job
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import BadSessionKey, ModelFailed
from gateway.domain.events import Batching, Notice
from gateway.domain.facts import Fact, Recalled
from gateway.domain.ids import SessionKey, to_micros, to_time
from gateway.domain.journal import (
    GRANTS,
    Attempt,
    attempt_of,
    damaged,
    pack_text,
)
from gateway.domain.mcp import Lacking
from gateway.domain.messages import Message
from gateway.domain.model import ModelRequest, ToolSpec
from gateway.domain.ports import Decode, Encode
from gateway.domain.scrubbing import STARS, scanner

log = logging.getLogger(__name__)

_BETWEEN = "\1"  # the parts of a message
_SHOWN = 60  # characters of a text from where it differs
_LONG_PACKED = 16 * 1024  # bytes that are unpacked in a thread


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


def packed(
    lines: Sequence[Line], encode: Encode, secrets: Sequence[str] = (), *, is_cut: bool = False
) -> bytes:
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


async def last_attempt(parts: Sequence[bytes], decode: Decode) -> Attempt:
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
