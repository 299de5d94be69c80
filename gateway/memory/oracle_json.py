"""An OracleContext as plain JSON values, and back; whatever is wrong is named with its field. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from gateway.memory.oracle import (
    LEAST_BUDGET,
    MOST_BUDGET,
    OVERFLOW,
    OracleCall,
    OracleContext,
    OracleExchange,
    OracleRefused,
)

T = TypeVar("T")
Read = Callable[[object, str], Any]


def to_values(thing: object) -> Any:
    """Times in UTC with Z; an exchange without calls has null for them."""
    match thing:
        case datetime():
            return thing.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case OracleExchange():
            plain = {one.name: to_values(getattr(thing, one.name)) for one in fields(thing)}
            return {**plain, "tool_calls": plain["tool_calls"] or None}
        case tuple():
            return [to_values(one) for one in thing]
        case _ if is_dataclass(thing):
            return {one.name: to_values(getattr(thing, one.name)) for one in fields(thing)}
        case _:
            return thing


def from_values(plain: object) -> OracleContext:
    """Raises OracleRefused."""
    context: OracleContext = _object(OracleContext, _CONTEXT)(plain, "context")
    if context.tokens_used > OVERFLOW * context.token_budget:
        raise OracleRefused(
            f"tokens_used: {context.tokens_used} are more than {OVERFLOW} times the token_budget "
            f"of {context.token_budget}"
        )
    known: set[str | None] = set()
    for place, one in enumerate(context.recent_exchanges):
        known.update(call.id for call in one.tool_calls)
        where = f"recent_exchanges[{place}]"
        if one.role == "tool" and one.tool_call_id not in known:
            raise OracleRefused(f"{where}.tool_call_id: a tool's message names a call before it")
        if one.role != "tool" and not one.content.strip():
            raise OracleRefused(f"{where}.content: it is empty")
    return context


def _text(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise OracleRefused(f"{at}: it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OracleRefused(f"{at}: it holds half of a surrogate pair") from error
    return value


def _named(value: object, at: str) -> str:
    if not _text(value, at):
        raise OracleRefused(f"{at}: it is empty")
    return str(value)


def _number(least: int, most: int = 1 << 53) -> Read:
    def read(value: object, at: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise OracleRefused(f"{at}: it must be a whole number from {least} to {most}")
        return value

    return read


def _one_of(*words: str) -> Read:
    def read(value: object, at: str) -> object:
        if value not in words:
            raise OracleRefused(f"{at}: it must be one of {', '.join(words)}")
        return value

    return read


def _time(value: object, at: str) -> datetime:
    try:
        time = datetime.fromisoformat(_text(value, at))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise OracleRefused(f"{at}: it must be a time in ISO 8601") from error


def _mapping(value: object, at: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise OracleRefused(f"{at}: it must be an object")
    return value


def _or_null(read: Read) -> Read:
    return lambda value, at: None if value is None else read(value, at)


def _list(read: Read) -> Read:
    def read_all(value: object, at: str) -> tuple[Any, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            raise OracleRefused(f"{at}: it must be a list")
        return tuple(read(one, f"{at}[{place}]") for place, one in enumerate(value))

    return read_all


def _object(make: Callable[..., T], reads: Mapping[str, Read]) -> Callable[[object, str], T]:
    """What is absent takes its default, if it has one; what is not known is refused."""

    def read(value: object, at: str) -> T:
        plain = _mapping(value, at)
        prefix = "" if make is OracleContext else f"{at}."
        if unknown := sorted(map(str, plain.keys() - reads.keys())):
            raise OracleRefused(f"{prefix}{unknown[0][:64]}: there is no such field")
        values = {name: reads[name](plain[name], prefix + name) for name in reads if name in plain}
        if missing := [name for name in reads if name in _REQUIRED and name not in plain]:
            raise OracleRefused(f"{prefix}{missing[0]}: it is missing")
        return make(**values)

    return read


_REQUIRED = frozenset(
    {"id", "user_id", "project_id", "session_start", "role", "content", "timestamp", "token_count"}
    | {"name", "arguments"}
)
_CALL: Mapping[str, Read] = {
    "id": _named,
    "name": _named,
    "arguments": _mapping,
    "result": _or_null(_text),
    "status": _one_of("pending", "success", "error"),
    "duration_ms": _or_null(_number(0)),
}
_EXCHANGE: Mapping[str, Read] = {
    "id": _named,
    "role": _one_of("user", "assistant", "tool"),
    "content": _text,
    "timestamp": _time,
    "token_count": _number(1),
    "tool_calls": _list(_object(OracleCall, _CALL)),
    "tool_call_id": _or_null(_named),
    "key_insight": _or_null(_text),
    "mentioned_symbols": _list(_text),
    "mentioned_files": _list(_text),
}
_CONTEXT: Mapping[str, Read] = {
    "id": _named,
    "user_id": _named,
    "project_id": _named,
    "session_start": _time,
    "last_activity": _or_null(_time),
    "last_model": _or_null(_text),
    "token_budget": _number(LEAST_BUDGET, MOST_BUDGET),
    "tokens_used": _number(0),
    "compressed_summary": _or_null(_text),
    "recent_exchanges": _list(_object(OracleExchange, _EXCHANGE)),
    "key_decisions": _list(_text),
    "mentioned_symbols": _or_null(_text),
    "mentioned_files": _or_null(_text),
    "status": _one_of("active", "suspended", "closed"),
    "compression_count": _number(0),
}
