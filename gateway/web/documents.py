"""The documents for programs: OpenAPI of the HTTP API and AsyncAPI of the WebSocket.

They are made of the declarations in `gateway/api`. Each is made in a thread at its first request, as it may take a
tenth of a second."""

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
    documents: Mapping[str, Document]  # by path
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
    """Returns the routes together with those of the OpenAPI document and of other documents."""
    own = [document(path) for path in ("/openapi.json", *others)]
    operations = [ALIVE, READY, *WEBHOOKS, *(route.operation for route in routes), *own]
    api = DocumentsApi({"/openapi.json": lambda: openapi(operations, version), **others})
    return (*routes, *api.routes())


# -- schemas

PLACE = "#/components/schemas/{model}"
_INPUT: JsonSchemaMode = "validation"  # fields with a default may be absent
_OUTPUT: JsonSchemaMode = "serialization"


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas of types. `components` belong under `components.schemas`; the methods return the references."""

    components: Json
    _references: Mapping[tuple[object, JsonSchemaMode], Json]

    def output(self, type_: object) -> Json:
        return self._references[type_, _OUTPUT]

    def input(self, type_: object) -> Json:
        return self._references[type_, _INPUT]


class _Generator(GenerateJsonSchema):
    """Leaves out titles, which repeat the names of fields. Results have all of their fields."""

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
        self._is_whole = self.mode == _OUTPUT and not issubclass(schema["cls"], Params)
        found = super().dataclass_schema(schema)
        self._is_whole = outside
        return found

    def named_tuple_schema(self, schema: Any) -> Json:
        is_key = schema["cls"] is SessionKey  # encoded as its text
        return {"type": "string"} if is_key else super().named_tuple_schema(schema)


def schemas_of(*, outputs: Sequence[Any] = (), inputs: Sequence[Any] = ()) -> Schemas:
    """Makes the schemas of all types together, so that two types of one name get two names. Takes a while."""
    uses = dict.fromkeys([*((one, _OUTPUT) for one in outputs), *((one, _INPUT) for one in inputs)])
    wanted = [((one, mode), mode, TypeAdapter[Any](one)) for one, mode in uses]
    found, rest = TypeAdapter.json_schemas(wanted, ref_template=PLACE, schema_generator=_Generator)
    return Schemas(rest.get("$defs", {}), {key: schema for (key, _), schema in found.items()})


# -- OpenAPI

_ABOUT_HTTP = (
    "The HTTP API of exogate, a gateway for AI agents. The WebSocket is described in /asyncapi.json. "
    "Later versions may add fields to answers. A request may have only the fields of its schema, unless "
    "the schema allows more."
)
_EVERYWHERE = (400, 401, 403, 408, 413, 414, 429, 431, 500, 503, 505)  # before a route is chosen
_BY_PARSER = (400, 408, 413, 414, 431, 503, 505)  # perhaps before the path is known
_REFUSED: Mapping[int, str] = {
    400: "The request is malformed.",
    401: "The credential is missing or invalid.",
    403: "Not allowed, or the Host or Origin is not allowed.",
    404: "Not found, or not yours.",
    408: "The request did not arrive in time.",
    409: "The key was used with another request, or the state changed meanwhile.",
    413: "The body is too large.",
    414: "The address is too long.",
    422: "A field is wrong; `problems` names it.",
    429: "A budget is spent, or your address sent too many wrong tokens.",
    431: "The headers are too many or too large.",
    500: "Internal error; details are in the log.",
    502: "The model service failed.",
    503: "Busy, starting, stopping, or the store is unavailable; nothing was accepted.",
    504: "The run reached its time limit.",
    505: "The version of HTTP is neither 1.0 nor 1.1.",
}
_REFUSED_HEADERS: Mapping[int, tuple[Header, ...]] = {
    401: (Header("WWW-Authenticate", "How to authenticate.", is_sure=True),),
    429: (WAIT,),
    502: (WAIT,),
    503: (WAIT,),
}
_IN_PATH = re.compile(r"\{(\w+)(?::\w+)?\}")


def openapi(operations: Sequence[Operation], version: str) -> Json:
    """Returns the OpenAPI document. Takes a while."""
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
    errors = [error for one in operations for error in (one.error, _early_error(one))]
    return schemas_of(
        outputs=[one for one in (ErrorAnswer, *answers, *errors) if one is not None],
        inputs=[one.body for one in operations if one.body is not None],
    )


def _early_error(one: Operation) -> Any:
    """Returns the type of a refusal before the path is known, which has the gateway's own form."""
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
    found: Json = {"operationId": "_".join(words), "summary": one.says}
    found["responses"] = _responses(one, schemas)
    if parameters := [*in_path, *in_query, *in_head]:
        found["parameters"] = parameters
    if one.body is not None:
        content = {one.body_media: {"schema": schemas.input(one.body)}}
        found["requestBody"] = {"required": one.body is not Any, "content": content}
    if not one.is_guarded:
        found["security"] = []
    return found


def _query(model: Any) -> Iterable[Json]:
    """Returns the parameters of a query. They are never null, only absent."""
    schema = schemas_of(inputs=[model]).components[model.__name__]
    for name, about in schema["properties"].items():
        kinds = [kind for kind in about.pop("anyOf", ()) if kind != {"type": "null"}]
        required = name in schema.get("required", ())
        known = {key: value for key, value in about.items() if value is not None}
        parts = {**known, **(kinds[0] if kinds else {})}
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
    found: Json = {
        str(status): {"$ref": f"#/components/responses/{_name(one, status)}"}
        for status in _refused(one)
    }
    for status in {answer.status for answer in one.answers}:
        alike = [answer for answer in one.answers if answer.status == status]
        found[str(status) if status else "default"] = _response(alike, schemas)
    return dict(sorted(found.items()))


def _refused(one: Operation) -> set[int]:
    everywhere = _EVERYWHERE if one.is_guarded else _BY_PARSER
    return {*everywhere, *one.refusals} - {answer.status for answer in one.answers}


def _name(one: Operation, status: int) -> str:
    return f"{one.error.__name__}{status}"


def _refusal(one: Operation, status: int) -> Answer:
    type_ = _early_error(one) if status in _BY_PARSER else one.error
    headers = _REFUSED_HEADERS.get(status, ())
    return Answer(status, _REFUSED[status], type_, headers=headers)


def _response(answers: Sequence[Answer], schemas: Schemas) -> Json:
    headers = {header.name: header for answer in answers for header in answer.headers}
    found: Json = {"description": " ".join(answer.says for answer in answers)}
    if headers:
        found["headers"] = {
            name: {
                "description": header.says,
                "required": header.is_sure and all(header in one.headers for one in answers),
                "schema": _text(header),
            }
            for name, header in headers.items()
        }
    if content := {answer.media: _media(answer, schemas) for answer in answers if answer.media}:
        found["content"] = content
    return found


def _media(answer: Answer, schemas: Schemas) -> Json:
    if answer.type is None:
        return {} if answer.media == ANYTHING else {"schema": {"type": "string"}}
    schema = schemas.output(answer.type)
    if answer.media != STREAM:
        return {"schema": schema}
    data: Json = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    if answer.last is not None:
        data = {"anyOf": [{"const": answer.last}, data]}
    event = {"type": "object", "required": ["data"], "properties": {"data": data}}
    return {"schema": {**event, "description": "An event of the stream."}}


# -- AsyncAPI

_ABOUT_SOCKET = """JSON-RPC 2.0: a text frame holds one message, or a batch of messages as an array.
The requests of a connection start in the order of their frames; a slow request does not delay the others.
A request without `id` gets no answer. Later versions may add fields to answers and events."""
_ENTRY = """Authenticate with the header `Authorization: Bearer TOKEN` of the handshake, or with a first request
`auth`; any other request before it is answered with -32001, and the socket is closed with 4401. If no token is
configured, programs on the same machine need none. A handshake whose `Origin` or `Host` is not allowed is answered
with HTTP 403; one beyond the limit of connections with 503."""
_CLOSES = """Close codes: 4401 not authenticated, or no longer; 4408 too slow (to authenticate, or to read
messages: continue with `chat.resume`); 4409 the frame is too large; 4429 too many failed attempts or
unauthenticated connections; 1012 the gateway stops or restarts; 1002, 1003 and 1007 as in RFC 6455."""
_EVENTS: Mapping[str, tuple[str, Any]] = {
    "chat.event": ("A chunk of a run; the last one is its only `done` or `error`.", RunEvent),
    "event": ("An event for subscribers of `events.subscribe`.", Event),
}
_SOCKET = "#/channels/socket"
_VERSION = {"const": "2.0"}
_ID = {"type": ["string", "number", "null"], "maxLength": MAX_ID}


def asyncapi(methods: Sequence[Method], version: str) -> Json:
    """Returns the AsyncAPI document. Takes a tenth of a second."""
    methods = [AUTH, *methods]
    events = [type_ for _, type_ in _EVENTS.values()]
    outputs = [*events, ErrorObject, *(one.result for one in methods)]
    schemas = schemas_of(outputs=outputs, inputs=[one.params for one in methods])
    components = dict(schemas.components)
    inside = [schemas.input(one.params)["$ref"].rpartition("/")[2] for one in methods]
    forms = {name: components.pop(name) for name in set(inside)}
    error = _envelope("id", error=_error(schemas.output(ErrorObject)))
    messages = {"error": _message("An error.", error)}
    for name, (summary, type_) in _EVENTS.items():
        payload = _envelope(method={"const": name}, params=schemas.output(type_))
        messages[name] = _message(summary, payload)
    for one, form in zip(methods, inside, strict=True):
        messages[one.name] = _request(one, forms[form])
        result = _envelope("id", result=schemas.output(one.result))
        messages[f"{one.name}.result"] = _message(f"The result of `{one.name}`.", result)
    return {
        "asyncapi": "3.1.0",
        "info": {"title": "exogate", "version": version, "description": _ABOUT_SOCKET},
        "defaultContentType": "application/json",
        "servers": {"gateway": _SERVER},
        "channels": {
            "socket": {
                "address": "/ws",
                "description": _CLOSES,
                "messages": _without_discriminators(messages),
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        "operations": _operations(methods),
        "components": {
            "schemas": _without_discriminators(components),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_SERVER: Json = {
    "host": "{address}",
    "protocol": "ws",
    "description": _ENTRY,
    "variables": {"address": {"default": "127.0.0.1:7200", "description": "Host and port."}},
    "security": [{"$ref": "#/components/securitySchemes/token"}],
}


def _operations(methods: Sequence[Method]) -> Json:
    events = {
        name: {
            "action": "send",
            "channel": {"$ref": _SOCKET},
            "summary": summary,
            "messages": [_message_ref(name)],
        }
        for name, (summary, _) in _EVENTS.items()
    }
    return {one.name: _operation(one) for one in methods} | events


def _operation(one: Method) -> Json:
    scopes = " or ".join(f"`{scope}`" for scope in one.scope or ())
    needs = f"Needs the scope {scopes}, or `admin`." if scopes else "Needs no scope."
    return {
        "action": "receive",
        "channel": {"$ref": _SOCKET},
        "summary": one.help,
        "description": needs,
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
    correlation = {"location": "$message.payload#/id"}
    return {**_message(one.help, payload), "correlationId": correlation}


def _envelope(*ids: str, **members: Json) -> Json:
    """Returns the schema of a JSON-RPC message with all members required."""
    properties = {"jsonrpc": _VERSION, **dict.fromkeys(ids, _ID), **members}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _error(data: Json) -> Json:
    """Returns the schema of an error, with the types of each code."""
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


def _without_discriminators(value: Any) -> Any:
    """Removes OpenAPI's discriminators: AsyncAPI gives them another meaning, and the constants in the schemas already
    tell the types apart."""
    if isinstance(value, list):
        return [_without_discriminators(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _without_discriminators(one)
        for name, one in value.items()
        if not (name == "discriminator" and isinstance(one, Mapping) and "propertyName" in one)
    }
