"""The OpenAPI document, of what the routes say of themselves and of the types that they use."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from gateway.web.published.errors import ErrorAnswer
from gateway.web.published.operations import ANYTHING, JSON, STREAM, WAIT, Answer, Header, Operation
from gateway.web.published.schemas import Json, Schemas, schemas_of

_ABOUT = (
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
    500: "Our mistake; the log has it.",
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
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.1",
        "info": {"title": "exogate", "version": version, "description": _ABOUT},
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


def _operation(one: Operation, schemas: Schemas) -> Json:
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


def _query(model: type[BaseModel]) -> Iterable[Json]:
    """In an address nothing is null: it is there or not."""
    schema = schemas_of(read=[model]).components[model.__name__]
    for name, field in schema["properties"].items():
        kinds = [kind for kind in field.pop("anyOf", ()) if kind != {"type": "null"}]
        about = {key: value for key, value in field.items() if value is not None}
        required = name in schema.get("required", ())
        parts = {**about, **(kinds[0] if kinds else {})}
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
