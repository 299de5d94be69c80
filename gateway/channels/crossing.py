"""What adapters say, read from JSON text and never trusted: types, then bounds."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from gateway.channels.adapters import Description, Formatted, Incoming, Parsed, Unusable, Whence
from gateway.channels.encoding import MARK, MENDED, marked
from gateway.domain.errors import AdapterFailed

LARGESTDESCRIPTION = 256 * 1024  # characters
MOST_MESSAGES = 1_000  # of one call
MOST_REQUESTS = 20
LONGEST_ID = 256
LARGEST_STATE = 64 * 1024  # characters, for both are written with a message
LARGEST_ANSWER = 4 * 1024  # bytes of JSON
NOT_UNICODE = "its text holds half of a surrogate pair or bytes that are no UTF-8"

T = TypeVar("T")


class _Readers:
    """Each made when it is needed: most gateways have no channel, and they take megabytes."""

    @cached_property
    def description(self) -> TypeAdapter[Description]:
        return TypeAdapter(Description)

    @cached_property
    def parsed(self) -> TypeAdapter[Parsed]:
        return TypeAdapter(Parsed)

    @cached_property
    def incoming(self) -> TypeAdapter[Incoming]:
        return TypeAdapter(Incoming)

    @cached_property
    def formatted(self) -> TypeAdapter[Formatted]:
        return TypeAdapter(Formatted)

    @cached_property
    def whence(self) -> TypeAdapter[Whence]:
        return TypeAdapter(Whence)


_READERS = _Readers()


def read_description(text: str) -> Description:
    """Raises ValueError with what is wrong, on one line."""
    if len(text) > LARGESTDESCRIPTION:
        raise ValueError(f"what it describes is larger than {LARGESTDESCRIPTION // 1024} KiB")
    try:
        return _READERS.description.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"what it describes cannot be used: {_first(error)}") from error


def read_parsed(text: str) -> Parsed:
    """Raises AdapterFailed."""
    parsed = _read(_READERS.parsed, text, "parse-incoming")
    for message in parsed.messages:
        _check(message)
    return _bounded(parsed)


def read_each(text: str, *, is_marked: bool) -> tuple[Parsed, Sequence[Unusable]]:
    """Each message for itself: one that cannot be used costs no other. `is_marked`: what the adapter
    was shown has marks in it. Raises AdapterFailed if nothing of it can be used."""
    plain, has_halves = marked(text.encode())
    if not is_marked and not has_halves:
        try:
            return read_parsed(text), ()
        except AdapterFailed as error:
            found = _apart(text)
            if found is None or not found[0].messages:
                raise error from None
            return found
    found = _apart(plain.decode())
    if found is None:
        read_parsed(plain.decode())
        raise AdapterFailed("parse-incoming gave what cannot be used")
    return found


def read_incoming(text: str) -> Incoming:
    return _READERS.incoming.validate_json(text)


def _apart(text: str) -> tuple[Parsed, Sequence[Unusable]] | None:
    """None if it fails as a whole."""
    try:
        told = from_json(text, allow_inf_nan=False)
        given = told.pop("messages", [])
        parsed = _bounded(
            _READERS.parsed.validate_json(to_json(told).decode().replace(MARK, MENDED))
        )
        _require_few(given)
    except (ValueError, AttributeError, TypeError, AdapterFailed):
        return None
    messages, unusable = [], []
    for one in given:
        read = _read_one(one)
        if isinstance(read, Incoming):
            messages.append(read)
        else:
            unusable.append(read)
    return replace(parsed, messages=tuple(messages)), unusable


def _read_one(given: Any) -> Incoming | Unusable:
    raw = to_json(given).decode()
    text = raw.replace(MARK, MENDED)
    try:
        message = _read(_READERS.incoming, text, "a message of parse-incoming")
        _check(message)
    except AdapterFailed as error:
        return Unusable(str(error), text)
    if raw == text:
        return message
    sender = given["sender"]
    ids = [given.get(name) for name in ("peer", "guild", "team", "thread", "platform_id", "key")]
    # Without their marks two ids may look alike.
    is_certain = not any(MARK in one for one in (*ids, sender["id"]) if one)
    why = NOT_UNICODE if is_certain else f"{NOT_UNICODE}, in an id"
    return Unusable(why, text, message, is_certain)


def _bounded(parsed: Parsed) -> Parsed:
    """Raises AdapterFailed."""
    _require_few(parsed.messages)
    if len(parsed.state or "") > LARGEST_STATE:
        raise AdapterFailed(f"parse-incoming: state is longer than {LARGEST_STATE} characters")
    return parsed


def _require_few(messages: Sequence[object]) -> None:
    if not isinstance(messages, Sequence):
        raise AdapterFailed("parse-incoming: messages is no list")
    if len(messages) > MOST_MESSAGES:
        raise AdapterFailed(f"parse-incoming made more than {MOST_MESSAGES} messages of one call")


def read_formatted(text: str) -> Formatted:
    """Raises AdapterFailed."""
    formatted = _read(_READERS.formatted, text, "format-outgoing")
    if len(formatted.requests) > MOST_REQUESTS:
        raise AdapterFailed(f"format-outgoing made more than {MOST_REQUESTS} requests")
    return formatted


def write_whence(whence: Whence) -> str:
    """As it is kept with a message."""
    return _READERS.whence.dump_json(whence).decode()


def read_whence(text: str) -> Whence:
    return _READERS.whence.validate_json(text)


def _read(adapter: TypeAdapter[T], text: str, function: str) -> T:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise AdapterFailed(f"{function} gave what cannot be used: {_first(error)}") from error


def _check(message: Incoming) -> None:
    """Ids become parts of keys: none is empty or endless."""
    if message.answer and len(to_json(message.answer)) > LARGEST_ANSWER:
        raise AdapterFailed(f"parse-incoming: answer is larger than {LARGEST_ANSWER} bytes")
    ids = {
        "peer": message.peer,
        "sender.id": message.sender.id,
        "platform_id": message.platform_id,
        "guild": message.guild,
        "team": message.team,
        "thread": message.thread,
        "key": message.key,
    }
    for name, value in ids.items():
        if value is not None and not 0 < len(value) <= LONGEST_ID:
            raise AdapterFailed(f"parse-incoming: {name} has to have 1 to {LONGEST_ID} characters")


def _first(error: ValidationError) -> str:
    """Where and what; never the value, which may be of any size. Where several kinds are possible,
    what is said of another kind than the one that was meant is no news."""
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
