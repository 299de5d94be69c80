"""Values and errors as JSON and as HTTP answers, in the gateway's own form and in that of OpenAI's API."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from gateway.api.declarations import build, plain
from gateway.api.errors import ErrorAnswer, InvalidParams, error_headers, error_object, failure_of
from gateway.api.openai import OpenAiError, OpenAiErrorAnswer
from gateway.domain.errors import Conflict

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def encode(value: object) -> bytes:
    """Encodes as JSON, times as ISO 8601 with Z. Raises ValueError for a value that JSON cannot hold."""
    return to_json(plain(value), inf_nan_mode="null")


def error_body(error: BaseException) -> bytes:
    return encode(ErrorAnswer(error=error_object(error)))


def error_response(error: BaseException) -> Response:
    status, headers = failure_of(error).status, error_headers(error)
    return Response(error_body(error), status, headers, media_type="application/json")


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(encode(value), status, headers, media_type="application/json")


def retry_headers(end: Mapping[str, Any]) -> dict[str, str]:
    """Returns the `retry-after` header for a failed run that may succeed later."""
    after = end.get("retry_after_s")
    return {} if after is None else {"retry-after": str(ceil(after))}


@dataclass(frozen=True, slots=True)
class OpenAiFailure:
    """An error in the form of OpenAI's API: status, object and headers."""

    status: int
    error: OpenAiError
    headers: Mapping[str, str]

    def response(self, more: Mapping[str, str] | None = None) -> Response:
        answer = OpenAiErrorAnswer(error=self.error)
        return json_response(answer, self.status, {**(more or {}), **self.headers})

    @staticmethod
    def of_run(end: Mapping[str, Any], status: int) -> "OpenAiFailure":
        """Describes a failed run. Its headers stop clients from repeating the request, which would cost again."""
        code = end["error_type"]
        kind = "insufficient_quota" if code == "budget_exceeded" else "server_error"
        facts = end if "scope" in end else {}  # the fields of a spent budget
        message = end["message"]
        error = build(OpenAiError, facts, message=message, type=kind, param=None, code=code)
        return OpenAiFailure(status, error, {**retry_headers(end), "x-should-retry": "false"})

    @staticmethod
    def of_request(error: BaseException) -> "OpenAiFailure":
        status, own = failure_of(error).status, error_object(error)
        param, message = getattr(error, "param", None), own.message
        if isinstance(error, InvalidParams):
            status = 400
            param, message = _first_problem(error) if error.problems else (None, message)
        kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        shown = OpenAiError(message=message, type=kind, param=param, code=own.code)
        never = {"x-should-retry": "false"} if isinstance(error, Conflict) else {}
        return OpenAiFailure(status, shown, {**error_headers(error), **never})


def _first_problem(error: InvalidParams) -> tuple[str, str]:
    """Returns the first wrong parameter and a message. Content may be text or parts, and gets one message for both."""
    where, what = error.problems[0]
    head, content, _ = where.partition(".content")
    if content:
        return f"{head}.content", f"{head}.content: must be text or parts of the type text"
    return where, f"{where}: {what}"
