"""Holds what a gateway sends to its AsyncAPI document."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema_rs import Validator, validator_for

from gateway.api.methods import METHODS
from gateway.web.documents import asyncapi


def require_promised(message: str, frame: Mapping[str, Any]) -> None:
    """`message` as the document names it. Raises ValidationError for a field that is wrong, is missing
    or is not in the document."""
    _validator(message).validate(frame)


def require_promised_answer(method: str, frame: Mapping[str, Any]) -> None:
    require_promised("error" if "error" in frame else f"{method}.result", frame)


@cache
def _validator(message: str) -> Validator:
    place = f"#/channels/socket/messages/{message}/payload"
    return validator_for({**_closed_document(), "$ref": place}, validate_formats=True)


@cache
def _closed_document() -> dict[str, Any]:
    closed = _closed(asyncapi(METHODS, "0"))
    assert isinstance(closed, dict)
    return closed


def _closed(value: object) -> object:
    """Users have to bear with more fields than they know, and we with none."""
    if isinstance(value, list):
        return [_closed(one) for one in value]
    if not isinstance(value, dict):
        return value
    shut = {name: _closed(one) for name, one in value.items()}
    if "properties" in shut and shut.get("type") == "object":
        shut.setdefault("additionalProperties", False)
    return shut
