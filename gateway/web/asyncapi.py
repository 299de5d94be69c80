"""The AsyncAPI document of the WebSocket, made of the methods that there are and of their types."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.web.published.about import Happening
from gateway.web.published.chunks import RunEvent
from gateway.web.published.errors import ErrorObject
from gateway.web.published.schemas import PLACE, Json, schemas_of
from gateway.web.responses import FAILURES, INTERNAL
from gateway.web.rpc import MAX_ID, Method
from gateway.web.socket import AUTH, PATH

_ABOUT = """JSON-RPC 2.0: a text frame holds one message, or a batch of them as an array.
Requests of one connection start in the order in which they came; a slow one does not hold up the others.
A request without `id` is not answered. What is told may get more fields in later versions."""
_ENTRY = """By the header `Authorization: Bearer TOKEN` of the handshake, or by a first request `auth`;
anything else before it is answered with -32001 and closed with 4401. Without any token configured, programs
on the same machine are let in as they are. A handshake with a foreign `Origin` or `Host` is answered with
HTTP 403, one too many with 503."""
_CLOSES = """Close codes: 4401 not authenticated, or no longer; 4408 too slow (to authenticate, or to read
what is sent: go on with `chat.resume`); 4409 a frame that is too large; 4429 too many failed attempts;
1012 the gateway stops or starts anew; 1002, 1003 and 1007 as RFC 6455 has them."""
_EVENTS: Mapping[str, tuple[str, Any]] = {
    "chat.event": ("A piece of a run; its last one is its only `done` or `error`.", RunEvent),
    "event": ("What happens, to whoever asked for it by `events.subscribe`.", Happening),
}
_SOCKET = "#/channels/socket"
_VERSION = {"const": "2.0"}
_ID = {"type": ["string", "number", "null"], "maxLength": MAX_ID}


def asyncapi(methods: Sequence[Method], version: str) -> Json:
    """Takes a tenth of a second."""
    asked = [AUTH, *methods]
    events = [type_ for _, type_ in _EVENTS.values()]
    told = [*events, ErrorObject, *(one.result for one in asked)]
    schemas = schemas_of(told=told, read=[one.params for one in asked])
    components = dict(schemas.components)
    inside = [_place(schemas.read(one.params)) for one in asked]
    forms = {name: components.pop(name) for name in set(inside)}
    messages = {
        "error": _message("A refusal.", _envelope("id", error=_error(schemas.told(ErrorObject)))),
    }
    for name, (summary, type_) in _EVENTS.items():
        payload = _envelope(method={"const": name}, params=schemas.told(type_))
        messages[name] = _message(summary, payload)
    for one, form in zip(asked, inside, strict=True):
        messages[one.name] = _request(one, forms[form])
        result = _envelope("id", result=schemas.told(one.result))
        messages[f"{one.name}.result"] = _message(f"What comes of `{one.name}`.", result)
    return {
        "asyncapi": "3.1.0",
        "info": {"title": "exogate", "version": version, "description": _ABOUT},
        "defaultContentType": "application/json",
        "servers": {"gateway": _SERVER},
        "channels": {"socket": _channel(_told_apart(messages))},
        "operations": _operations(asked),
        "components": {"schemas": _told_apart(components), "securitySchemes": _SECURITY},
    }


_SERVER: Json = {
    "host": "{address}",
    "protocol": "ws",
    "description": _ENTRY,
    "variables": {"address": {"default": "127.0.0.1:7200", "description": "Host and port."}},
    "security": [{"$ref": "#/components/securitySchemes/token"}],
}
_SECURITY: Json = {"token": {"type": "http", "scheme": "bearer"}}


def _channel(messages: Json) -> Json:
    return {
        "address": PATH,
        "description": _CLOSES,
        "messages": messages,
        "bindings": {"ws": {"method": "GET"}},
    }


def _operations(asked: Sequence[Method]) -> Json:
    events = {
        name: {
            "action": "send",
            "channel": {"$ref": _SOCKET},
            "summary": summary,
            "messages": [_told(name)],
        }
        for name, (summary, _) in _EVENTS.items()
    }
    return {one.name: _operation(one) for one in asked} | events


def _operation(one: Method) -> Json:
    scopes = " or ".join(f"`{scope}`" for scope in one.scope or ())
    return {
        "action": "receive",
        "channel": {"$ref": _SOCKET},
        "summary": one.summary,
        "description": f"Needs the scope {scopes}; `admin` will do."
        if scopes
        else "Needs no scope.",
        "tags": [{"name": one.name.partition(".")[0]}],
        "messages": [_told(one.name)],
        "reply": {
            "channel": {"$ref": _SOCKET},
            "messages": [_told(f"{one.name}.result"), _told("error")],
        },
    }


def _told(message: str) -> Json:
    return {"$ref": f"{_SOCKET}/messages/{message}"}


def _message(summary: str, payload: Json) -> Json:
    return {"summary": summary, "payload": payload}


def _request(one: Method, form: Json) -> Json:
    params = {name: part for name, part in form.items() if name not in {"title", "description"}}
    payload = _envelope(method={"const": one.name}, params=params)
    payload["properties"]["id"] = _ID
    payload["additionalProperties"] = False
    if not form.get("required"):
        payload["required"].remove("params")
    told = _message(one.summary, payload)
    return {**told, "correlationId": {"location": "$message.payload#/id"}}


def _envelope(*ids: str, **members: Json) -> Json:
    """With all members required."""
    properties = {"jsonrpc": _VERSION, **dict.fromkeys(ids, _ID), **members}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _error(data: Json) -> Json:
    """Each code with the types that it comes with."""
    types: dict[int, set[str]] = {}
    for failure in (*FAILURES.values(), INTERNAL):
        types.setdefault(failure.rpc, set()).add(failure.type)
    return {
        "type": "object",
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": data},
        "required": ["code", "message", "data"],
        "oneOf": [
            {
                "properties": {
                    "code": {"const": code},
                    "data": {"properties": {"type": {"enum": sorted(types[code])}}},
                }
            }
            for code in sorted(types)
        ],
    }


def _place(reference: Json) -> str:
    return str(reference["$ref"]).removeprefix(PLACE.partition("{")[0])


def _told_apart(value: Any) -> Any:
    """Without OpenAPI's discriminators: here they would mean something else, and the constants in
    the schemas say the same."""
    if isinstance(value, list):
        return [_told_apart(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _told_apart(one)
        for name, one in value.items()
        if not (name == "discriminator" and isinstance(one, Mapping) and "propertyName" in one)
    }
