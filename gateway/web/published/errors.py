"""Errors: ours, in HTTP and in JSON-RPC, and those of OpenAI's API."""

from datetime import datetime
from typing import Literal, NotRequired

from typing_extensions import TypedDict


class Problem(TypedDict):
    """What is wrong with one parameter; `param` leads to it."""

    param: str
    message: str


class ErrorObject(TypedDict):
    """`type` is one of few, `code` says more; `message` may be shown. The fields of a spent budget
    are there if it was one."""

    type: str
    code: str
    message: str
    retryable: bool
    retry_after_s: NotRequired[float]
    problems: NotRequired[list[Problem]]
    scope: NotRequired[str]
    used: NotRequired[int | float]
    limit: NotRequired[int | float]
    unit: NotRequired[Literal["tokens", "usd"]]
    resets_at: NotRequired[datetime | None]


class ErrorAnswer(TypedDict):
    """Every refusal, but those of OpenAI's API."""

    error: ErrorObject


class OpenAiError(TypedDict):
    """As OpenAI's clients expect it."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAiErrorAnswer(TypedDict):
    """Every refusal of OpenAI's API."""

    error: OpenAiError
