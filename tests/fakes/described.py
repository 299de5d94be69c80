"""Whether an answer is what the OpenAPI document says of it, and nothing besides."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs

from gateway.api import http, openai
from gateway.api.methods import METHODS
from gateway.domain.version import VERSION
from gateway.web.documents import openapi

Document = dict[str, Any]

OPERATIONS = (
    *(http.ALIVE, http.READY, *http.WEBHOOKS, http.METRICS, http.MCP, http.CHAT),
    *(http.MESSAGES, http.ERASE, *(http.twin(method) for method in METHODS if method.http)),
    *(openai.MODELS, openai.MODEL, openai.COMPLETIONS, http.RECORDS),
    *map(http.document, http.DOCUMENTS),
)


def closed(document: Document) -> Document:
    """The same, but what is answered has no other fields than those that stand there."""
    whole: Document = json.loads(json.dumps(document))
    schemas = whole["components"]["schemas"]
    bodies = [one.get("requestBody") for path in whole["paths"].values() for one in path.values()]
    asked = set(_named(bodies, schemas))
    for name, schema in schemas.items():
        if name not in asked and "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return whole


def _named(value: object, schemas: Mapping[str, Any]) -> Iterator[str]:
    """Schemas that something refers to, also by way of others."""
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(value)):
        yield name
        yield from _named(schemas[name], schemas)


@cache
def everything() -> Document:
    return closed(openapi(OPERATIONS, VERSION))


def check(method: str, url: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raises AssertionError. What stands in no document is nobody's promise."""
    path = _path(method.lower(), urlsplit(url).path)
    if path is None or b"there is no resource at this path" in body:
        return
    what, given = f"{method} {path} {status}", {name.lower() for name in headers}
    responses = everything()["paths"][path][method.lower()]["responses"]
    response = responses.get(str(status), responses.get("default"))
    assert response is not None, f"{what} is not described"
    if "$ref" in response:
        response = everything()["components"]["responses"][response["$ref"].rpartition("/")[2]]
    for name, header in response.get("headers", {}).items():
        assert name.lower() in given or not header["required"], f"{what} lacks {name}"
    kinds = [value for name, value in headers.items() if name.lower() == "content-type"]
    kind = "".join(kinds).partition(";")[0]
    content = response.get("content", {})
    assert kind in content or "*/*" in content or not body, f"{what} is no {kind}"
    schema = content.get(kind, {}).get("schema", {})
    for part, value in _values(kind, schema, body):
        problem = next(_validator(json.dumps(part)).iter_errors(value), None)
        assert problem is None, f"{what}: {problem}"


def _path(method: str, asked: str) -> str | None:
    """The most special one that fits."""
    paths: Document = everything()["paths"]
    for path in sorted(paths, key=lambda one: (-len(one.split("}")[-1]), one)):
        fits = re.fullmatch(re.sub(r"\{\w+\}", ".+", path), asked)
        if fits and method in paths[path]:
            return path
    return None


def _values(kind: str, schema: Any, body: bytes) -> Iterator[tuple[Any, object]]:
    """Each schema with what has to fit it; of a stream that was cut off, its whole events."""
    if kind == "application/json" and schema:
        yield schema, json.loads(body)
    if kind == "text/event-stream":
        data = schema["properties"]["data"]
        *ends, told = data.get("anyOf", [data])
        for event in body.decode().split("\n\n")[:-1]:
            text = event.removeprefix("data: ")
            if text not in [end["const"] for end in ends]:
                yield told["contentSchema"], json.loads(text)


@cache
def _validator(schema: str) -> jsonschema_rs.Validator:
    rooted = {**json.loads(schema), "components": everything()["components"]}
    return jsonschema_rs.validator_for(rooted, validate_formats=True)
