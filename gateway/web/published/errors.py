"""Errors: ours, in HTTP and in JSON-RPC, and those of OpenAI's API."""

from datetime import datetime
from typing import Literal, NotRequired

from typing_extensions import TypedDict


class Problem(TypedDict):
    """What is wrong with one parameter; `param` leads to it."""

    param: str
    message: str


class Spent(TypedDict, total=False):
    """Facts of a budget that refused a call. `retry_after_s` is not there if it never resets."""

    scope: str
    used: int | float
    reserved: int | float
    limit: int | float
    unit: Literal["tokens", "usd"]
    resets_at: datetime | None
    retry_after_s: float


class ErrorObject(Spent):
    """`type` is one of few, `code` says more; `message` may be shown. The fields of a spent budget
    are there if it was one."""

    type: str
    code: str
    message: str
    retryable: bool
    problems: NotRequired[list[Problem]]


class ErrorAnswer(TypedDict):
    """Every refusal, but those of OpenAI's API."""

    error: ErrorObject


class OpenAiError(Spent):
    """As OpenAI's clients expect it."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAiErrorAnswer(TypedDict):
    """Every refusal of OpenAI's API."""

    error: OpenAiError
