"""Reads and writes the JSON of adapters strictly and within bounds, and publishes its schemas.

The host marks text that has no UTF-8 form before an adapter sees it, so that only its message fails.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from gateway.channels.adapters import (
    AdapterEvent,
    AdapterReply,
    Description,
    Formatted,
    Incoming,
    Parsed,
    ReplyContext,
    Unusable,
)
from gateway.domain.errors import AdapterFailed

LARGEST_DESCRIPTION = 256 * 1024  # characters
MOST_MESSAGES = 1_000  # of one call
MOST_REQUESTS = 20
LONGEST_ID = 256
LARGEST_STATE = 64 * 1024  # characters; the store writes it with a message
LARGEST_ANSWER = 4 * 1024  # bytes of JSON; the store writes it with a message
LARGEST_READ = 1_048_576
NOT_UNICODE = "its text holds half of a surrogate pair or bytes that are not UTF-8"

# Two noncharacters: people do not type them, and adapters do not read them as markup.
MARK = "\ufdd0\ufdd1"
MENDED = "\N{REPLACEMENT CHARACTER}"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_ESCAPE = re.compile(rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}")
_HALF = re.compile("[\ud800-\udfff]")
_MAY_HOLD_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

T = TypeVar("T")


# Built on first use: a TypeAdapter takes megabytes, and most gateways have no channel.
_type_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _validate(kind: type[T], text: str) -> T:
    value: T = _type_adapter(kind).validate_json(text)
    return value


def schemas() -> dict[str, dict[str, Any]]:
    """Returns the JSON Schemas of the values between host and adapter, published under
    docs/schemas."""
    published: dict[str, type] = {
        "describe": Description,
        "event": AdapterEvent,
        "parse-incoming": Parsed,
        "reply": AdapterReply,
        "format-outgoing": Formatted,
    }
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {name: dialect | TypeAdapter(one).json_schema() for name, one in published.items()}


# --------------------------------------------------------------------------- results of adapters
def read_description(text: str) -> Description:
    """Raises ValueError with the problem on one line."""
    if len(text) > LARGEST_DESCRIPTION:
        raise ValueError(f"its description is larger than {LARGEST_DESCRIPTION // 1024} KiB")
    try:
        return _validate(Description, text)
    except ValidationError as error:
        raise ValueError(f"its description is invalid: {_first(error)}") from error


def read_formatted(text: str) -> Formatted:
    """Raises AdapterFailed."""
    formatted = _read(Formatted, text, "format-outgoing")
    if len(formatted.requests) > MOST_REQUESTS:
        raise AdapterFailed(f"format-outgoing returned more than {MOST_REQUESTS} requests")
    return formatted


def read_parsed(text: str) -> Parsed:
    """Raises AdapterFailed."""
    parsed = _read(Parsed, text, "parse-incoming")
    for message in parsed.messages:
        _check(message)
    return _check_bounds(parsed)


def read_each(text: str, *, is_marked: bool) -> tuple[Parsed, Sequence[Unusable]]:
    """Reads each message on its own, so that an unusable one does not cost the others. `is_marked`
    says that the adapter's input has marks. Raises AdapterFailed if no part is usable."""
    plain, has_halves = mark_invalid(text.encode())
    if not is_marked and not has_halves:
        try:
            return read_parsed(text), ()
        except AdapterFailed as error:
            found = _read_apart(text)
            if found is None or not found[0].messages:
                raise error from None
            return found
    found = _read_apart(plain.decode())
    if found is None:
        read_parsed(plain.decode())
        raise AdapterFailed("parse-incoming returned an invalid answer")
    return found


def read_incoming(text: str) -> Incoming:
    return _validate(Incoming, text)


def write_event(event: AdapterEvent) -> bytes:
    return _type_adapter(AdapterEvent).dump_json(event, exclude_none=True)


def write_context(context: ReplyContext) -> str:
    """Returns the JSON that the store keeps with a message."""
    return to_json(context).decode()


def read_context(text: str) -> ReplyContext:
    return _validate(ReplyContext, text)


def _read_apart(text: str) -> tuple[Parsed, Sequence[Unusable]] | None:
    """Reads an answer message by message; None if the answer as a whole is invalid."""
    try:
        whole = from_json(text, allow_inf_nan=False)
        given = whole.pop("messages", [])
        parsed = _check_bounds(_validate(Parsed, to_json(whole).decode().replace(MARK, MENDED)))
        _require_few(given)
    except (ValueError, AttributeError, TypeError, AdapterFailed):
        return None
    read = [_read_one(one) for one in given]
    messages = tuple(one for one in read if isinstance(one, Incoming))
    return replace(parsed, messages=messages), [one for one in read if isinstance(one, Unusable)]


def _read_one(given: Any) -> Incoming | Unusable:
    raw = to_json(given).decode()
    text = raw.replace(MARK, MENDED)
    try:
        message = _read(Incoming, text, "a message of parse-incoming")
        _check(message)
    except AdapterFailed as error:
        return Unusable(str(error), text)
    if raw == text:
        return message
    ids = [given.get(name) for name in ("peer", "guild", "team", "thread", "platform_id", "key")]
    # Two different ids may become equal once their marks are replaced.
    is_certain = not any(MARK in one for one in (*ids, given["sender"]["id"]) if one)
    why = NOT_UNICODE if is_certain else f"{NOT_UNICODE}, in an id"
    return Unusable(why, text, message, is_certain)


def _check_bounds(parsed: Parsed) -> Parsed:
    """Raises AdapterFailed."""
    _require_few(parsed.messages)
    if len(parsed.state or "") > LARGEST_STATE:
        raise AdapterFailed(f"parse-incoming: state is longer than {LARGEST_STATE} characters")
    return parsed


def _require_few(messages: Sequence[object]) -> None:
    if not isinstance(messages, Sequence):
        raise AdapterFailed("parse-incoming: messages is not a list")
    if len(messages) > MOST_MESSAGES:
        raise AdapterFailed(f"parse-incoming returned more than {MOST_MESSAGES} messages")


def _read(kind: type[T], text: str, function: str) -> T:
    try:
        return _validate(kind, text)
    except ValidationError as error:
        raise AdapterFailed(f"{function} returned an invalid answer: {_first(error)}") from error


def _check(message: Incoming) -> None:
    """Raises AdapterFailed for an empty or overlong id, because ids become parts of keys."""
    if message.answer and len(to_json(message.answer)) > LARGEST_ANSWER:
        raise AdapterFailed(f"parse-incoming: answer is larger than {LARGEST_ANSWER} bytes")
    names = ("peer", "platform_id", "guild", "team", "thread", "key")
    ids = {"sender.id": message.sender.id} | {name: getattr(message, name) for name in names}
    for name, value in ids.items():
        if value is not None and not 0 < len(value) <= LONGEST_ID:
            raise AdapterFailed(f"parse-incoming: {name} must have 1 to {LONGEST_ID} characters")


def _first(error: ValidationError) -> str:
    """Returns the place and the problem of the first error, without the value, which has no bound.
    In a union only errors of the intended type count."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    others = {one["loc"][:-1] for one in errors if one["loc"][-1:] == ("type",)}
    meant = [
        one
        for one in errors
        if one["type"] != "tuple_type" and not any(one["loc"][: len(at)] == at for at in others)
    ]
    first = (meant or errors)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


# ---------------------------------------------------------------------------------- invalid text
def mark_invalid(body: bytes) -> tuple[bytes, bool]:
    """Returns JSON with MARK for each half of a surrogate pair and each byte that is not UTF-8, and
    whether it holds a mark. Text that is not JSON stays unchanged."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return body, False
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = _HALF.sub(MARK, body.decode(errors="surrogateescape"))
    else:
        if _MAY_HOLD_HALF.search(body) is None:
            return body, False
    # JSON holds no \0, so \0\0 can stand for an escaped backslash, which begins no escape.
    if "\0" not in text:
        text = _HALF_ESCAPE.sub(MARK, text.replace(r"\\", "\0\0")).replace("\0\0", r"\\")
    changed = text.encode()
    return changed, changed != body


def readable(frame: str) -> str:
    """Returns a platform's JSON without invalid text, for the parts that the host reads itself."""
    changed, is_changed = mark_invalid(frame.encode(errors="replace"))
    return changed.decode().replace(MARK, MENDED) if is_changed else frame


def read_json(text: bytes | str) -> object:
    """Returns the JSON value; None for other text, and for text so long that parsing would block
    the event loop."""
    if len(text) > LARGEST_READ:
        return None
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    try:
        return from_json(readable(shown), allow_inf_nan=False)
    except ValueError:
        return None
