"""JSON Schemas of all that crosses between host and adapter, published under docs/schemas."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from gateway.channels.adapters import Description, Formatted, Parsed, Strict, Table
from gateway.domain.channels import TransportKind


@dataclass(frozen=True, slots=True)
class Event(Strict):
    """What `parse-incoming` is given: a call of the platform, its answer to a poll, or a frame.
    Headers are in lower case, without those that prove who calls; secrets are taken out."""

    transport: TransportKind
    headers: dict[str, str]
    account: str
    config: Table
    state: str  # as it was returned last
    method: str | None = None
    path: str | None = None  # below /webhooks/NAME
    query: str | None = None
    status: int | None = None  # of an answer to a poll
    api_base: str | None = None
    body: str | None = None
    body_base64: str | None = None  # instead of `body`, if that is no text


@dataclass(frozen=True, slots=True)
class Reply(Strict):
    """What `format-outgoing` is given. `answer` and `reply_to` are of the message that is answered;
    `edits` is the platform's id of the message to edit; `key` is the same for the same part."""

    do: Literal["send", "edit", "typing", "join"]
    key: str
    peer: str
    thread: str | None
    is_group: bool
    reply_to: str | None
    answer: Table
    text: str  # Markdown
    edits: str | None
    account: str
    config: Table
    api_base: str | None


def schemas() -> dict[str, dict[str, Any]]:
    """By name."""
    crossing: dict[str, type] = {
        "describe": Description,
        "event": Event,
        "parse-incoming": Parsed,
        "reply": Reply,
        "format-outgoing": Formatted,
    }
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {name: dialect | TypeAdapter(one).json_schema() for name, one in crossing.items()}
