"""The documents that describe this gateway to programs: OpenAPI of the HTTP API and AsyncAPI of the WebSocket.

They are made of the declarations in `gateway/api`, each when it is first asked for, in a thread: to make one may take
a tenth of a second."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.chunks import RunEvent
from gateway.api.declarations import Method, Params
from gateway.api.errors import FAILURES, INTERNAL, ErrorAnswer, ErrorObject
from gateway.api.http import (
    ALIVE,
    ANYTHING,
    JSON,
    READY,
    STREAM,
    WAIT,
    WEBHOOKS,
    Answer,
    Header,
    Operation,
    document,
)
from gateway.api.operating import AUTH
from gateway.domain.events import Event
from gateway.domain.ids import SessionKey
from gateway.web.asgi import Described
from gateway.web.rpc import MAX_ID

Json = dict[str, Any]
Document = Callable[[], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class DocumentsApi:
    """`documents` are by path."""

    documents: Mapping[str, Document]
    _made: dict[str, bytes] = field(default_factory=dict)

    def routes(self) -> Sequence[Described]:
        return [Described(document(path), self.document) for path in self.documents]

    async def document(self, request: Request) -> Response:
        path = request.url.path
        if path not in self._made:
            self._made[path] = await to_thread.run_sync(lambda: to_json(self.documents[path]()))
        return Response(self._made[path], media_type="application/json")


def documented(
    routes: Sequence[Described], version: str, others: Mapping[str, Document]
) -> Sequence[Described]:
    """The routes, and those of the document that describes all of them, and of other documents."""
    own = [document(path) for path in ("/openapi.json", *others)]
    operations = [ALIVE, READY, *WEBHOOKS, *(route.operation for route in routes), *own]
    api = DocumentsApi({"/openapi.json": lambda: openapi(operations, version), **others})
    return (*routes, *api.routes())


# -- schemas

PLACE = "#/components/schemas/{model}"
_READ: JsonSchemaMode = "validation"  # what has a default may be absent
_TOLD: JsonSchemaMode = "serialization"


@dataclass(frozen=True, slots=True)
class Schemas:
    """`components` belong under `components.schemas`; the methods say what to write where a type
    stands."""

    components: Json
    _places: Mapping[tuple[object, JsonSchemaMode], Json]

    def told(self, type_: object) -> Json:
        return self._places[type_, _TOLD]

    def read(self, type_: object) -> Json:
        return self._places[type_, _READ]


class _Generator(GenerateJsonSchema):
    """A field's title would only be its name once more. What is told is told whole."""

    _is_whole = False

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: FBT001  # pydantic's own signature
        return self._is_whole or super().field_is_required(field, total)

    def default_schema(self, schema: Any) -> Json:
        if self._is_whole:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def dataclass_schema(self, schema: Any) -> Json:
        outside = self._is_whole
        self._is_whole = self.mode == _TOLD and not issubclass(schema["cls"], Params)
        told = super().dataclass_schema(schema)
        self._is_whole = outside
        return told

    def named_tuple_schema(self, schema: Any) -> Json:
        """A session key is told as its text."""
        is_key = schema["cls"] is SessionKey
        return {"type": "string"} if is_key else super().named_tuple_schema(schema)


def schemas_of(*, told: Sequence[Any] = (), read: Sequence[Any] = ()) -> Schemas:
    """Of all types at once, so that two of one name get two names. Takes a while."""
    uses = dict.fromkeys([*((one, _TOLD) for one in told), *((one, _READ) for one in read)])
    wanted = [((one, mode), mode, TypeAdapter[Any](one)) for one, mode in uses]
    found, rest = TypeAdapter.json_schemas(wanted, ref_template=PLACE, schema_generator=_Generator)
    return Schemas(rest.get("$defs", {}), {key: schema for (key, _), schema in found.items()})


# -- OpenAPI

_ABOUT_HTTP = (
    "The HTTP API of exogate, a gateway for AI agents. The WebSocket is described in /asyncapi.json. "
    "Fields may be added to answers; what is asked may only have those that stand here, unless its "
    "schema allows more."
)
_EVERYWHERE = (400, 401, 403, 408, 413, 414, 429, 431, 500, 503, 505)  # refused at the door
_BY_PARSER = (400, 408, 413, 414, 431, 503, 505)  # perhaps before anybody knows what was asked
_REFUSED: Mapping[int, str] = {
    400: "Not understood.",
    401: "No credential that counts.",
    403: "Not allowed; or a foreign Host or Origin.",
    404: "Not there, or not yours.",
    408: "Did not arrive in time.",
    409: "The same key was used with another request, or something moved meanwhile.",
    413: "Too large.",
    414: "The address is too long.",
    422: "A field is wrong; `problems` says which.",
    429: "A budget is spent, or your address failed too often to say who it is.",
    431: "Too many or too large headers.",
    500: "Internal error; details are in the log.",
    502: "The model service failed.",
    503: "Busy, starting or stopping, or nothing can be stored; nothing was accepted.",
    504: "The run reached its time limit.",
    505: "Another version of HTTP than 1.0 and 1.1.",
}
_REFUSED_HEADERS: Mapping[int, tuple[Header, ...]] = {
    401: (Header("WWW-Authenticate", "How to say who you are.", is_sure=True),),
    429: (WAIT,),
    502: (WAIT,),
    503: (WAIT,),
}
_IN_PATH = re.compile(r"\{(\w+)(?::\w+)?\}")


def openapi(operations: Sequence[Operation], version: str) -> Json:
    """Takes a while."""
    schemas = _schemas(operations)
    paths: Json = {}
    for one in operations:
        path = _IN_PATH.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _http_operation(one, schemas)
    return {
        "openapi": "3.1.1",
        "info": {"title": "exogate", "version": version, "description": _ABOUT_HTTP},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {
                _name(one, status): _response([_refusal(one, status)], schemas)
                for one in operations
                for status in sorted(_refused(one))
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _schemas(operations: Sequence[Operation]) -> Schemas:
    answers = [answer.type for one in operations for answer in one.answers]
    bodies = [one.body for one in operations]
    return schemas_of(
        told=[one for one in (ErrorAnswer, *answers, *_errors(operations)) if one is not None],
        read=[one for one in bodies if one is not None],
    )


def _errors(operations: Sequence[Operation]) -> Iterable[object]:
    for one in operations:
        yield from (one.error, _at_the_door(one))


def _at_the_door(one: Operation) -> Any:
    """What is refused before it is known what was asked is refused in our words."""
    return one.error if one.error is ErrorAnswer else one.error | ErrorAnswer


def _http_operation(one: Operation, schemas: Schemas) -> Json:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _IN_PATH.findall(one.path)
    ]
    in_query = [] if one.query is None else _query(one.query)
    in_head = [_parameter(header) for header in one.headers]
    path = _IN_PATH.sub(r"\1", one.path)
    words = re.findall(r"\w+", f"{one.method.lower()} {path}")
    named = {"operationId": "_".join(words), "summary": one.says}
    shown: Json = {**named, "responses": _responses(one, schemas)}
    if parameters := [*in_path, *in_query, *in_head]:
        shown["parameters"] = parameters
    if one.body is not None:
        content = {one.body_media: {"schema": schemas.read(one.body)}}
        shown["requestBody"] = {"required": one.body is not Any, "content": content}
    if not one.is_guarded:
        shown["security"] = []
    return shown


def _query(model: Any) -> Iterable[Json]:
    """In an address nothing is null: it is there or not."""
    schema = schemas_of(read=[model]).components[model.__name__]
    for name, about in schema["properties"].items():
        kinds = [kind for kind in about.pop("anyOf", ()) if kind != {"type": "null"}]
        required = name in schema.get("required", ())
        told = {key: value for key, value in about.items() if value is not None}
        parts = {**told, **(kinds[0] if kinds else {})}
        yield {"name": name, "in": "query", "required": required, "schema": parts}


def _parameter(header: Header) -> Json:
    return {
        "name": header.name,
        "in": "header",
        "required": header.is_sure,
        "description": header.says,
        "schema": _text(header),
    }


def _text(header: Header) -> Json:
    return {"type": "string", **({"pattern": header.pattern} if header.pattern else {})}


def _responses(one: Operation, schemas: Schemas) -> Json:
    told: Json = {
        str(status): {"$ref": f"#/components/responses/{_name(one, status)}"}
        for status in _refused(one)
    }
    for status in {answer.status for answer in one.answers}:
        alike = [answer for answer in one.answers if answer.status == status]
        told[str(status) if status else "default"] = _response(alike, schemas)
    return dict(sorted(told.items()))


def _refused(one: Operation) -> set[int]:
    everywhere = _EVERYWHERE if one.is_guarded else _BY_PARSER
    return {*everywhere, *one.refusals} - {answer.status for answer in one.answers}


def _name(one: Operation, status: int) -> str:
    return f"{one.error.__name__}{status}"


def _refusal(one: Operation, status: int) -> Answer:
    type_ = _at_the_door(one) if status in _BY_PARSER else one.error
    headers = _REFUSED_HEADERS.get(status, ())
    return Answer(status, _REFUSED[status], type_, headers=headers)


def _response(answers: Sequence[Answer], schemas: Schemas) -> Json:
    headers = {header.name: header for answer in answers for header in answer.headers}
    shown: Json = {"description": " ".join(answer.says for answer in answers)}
    if headers:
        shown["headers"] = {
            name: {
                "description": header.says,
                "required": header.is_sure and all(header in one.headers for one in answers),
                "schema": _text(header),
            }
            for name, header in headers.items()
        }
    if content := {answer.media: _media(answer, schemas) for answer in answers if answer.media}:
        shown["content"] = content
    return shown


def _media(answer: Answer, schemas: Schemas) -> Json:
    if answer.type is None:
        return {} if answer.media == ANYTHING else {"schema": {"type": "string"}}
    schema = schemas.told(answer.type)
    if answer.media != STREAM:
        return {"schema": schema}
    data: Json = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    if answer.last is not None:
        data = {"anyOf": [{"const": answer.last}, data]}
    event = {"type": "object", "required": ["data"], "properties": {"data": data}}
    return {"schema": {**event, "description": "Of each event."}}


# -- AsyncAPI

_ABOUT_SOCKET = """JSON-RPC 2.0: a text frame holds one message, or a batch of them as an array.
Requests of one connection start in the order in which they came; a slow one does not hold up the others.
A request without `id` is not answered. What is told may get more fields in later versions."""
_ENTRY = """By the header `Authorization: Bearer TOKEN` of the handshake, or by a first request `auth`;
anything else before it is answered with -32001 and closed with 4401. Without any token configured, programs
on the same machine are let in as they are. A handshake with a foreign `Origin` or `Host` is answered with
HTTP 403, too many with 503."""
_CLOSES = """Close codes: 4401 not authenticated, or no longer; 4408 too slow (to authenticate, or to read
what is sent: go on with `chat.resume`); 4409 a frame that is too large; 4429 too many failed attempts;
1012 the gateway stops or restarts; 1002, 1003 and 1007 as RFC 6455 has them."""
_EVENTS: Mapping[str, tuple[str, Any]] = {
    "chat.event": ("A piece of a run; its last one is its only `done` or `error`.", RunEvent),
    "event": ("Events for subscribers of `events.subscribe`.", Event),
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
        "info": {"title": "exogate", "version": version, "description": _ABOUT_SOCKET},
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
        "address": "/ws",
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
            "messages": [_message_ref(name)],
        }
        for name, (summary, _) in _EVENTS.items()
    }
    return {one.name: _operation(one) for one in asked} | events


def _operation(one: Method) -> Json:
    scopes = " or ".join(f"`{scope}`" for scope in one.scope or ())
    return {
        "action": "receive",
        "channel": {"$ref": _SOCKET},
        "summary": one.help,
        "description": f"Needs the scope {scopes}; `admin` will do."
        if scopes
        else "Needs no scope.",
        "tags": [{"name": one.name.partition(".")[0]}],
        "messages": [_message_ref(one.name)],
        "reply": {
            "channel": {"$ref": _SOCKET},
            "messages": [_message_ref(f"{one.name}.result"), _message_ref("error")],
        },
    }


def _message_ref(message: str) -> Json:
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
    told = _message(one.help, payload)
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
