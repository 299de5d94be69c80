"""How an error looks outside: one table for HTTP statuses and JSON-RPC codes, one shape for both."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from pydantic_core import to_json
from starlette.responses import Response

from gateway.api.errors import (
    AnswerTooLarge,
    BodyTooLarge,
    Forbidden,
    HeadTooLarge,
    InvalidJson,
    InvalidParams,
    InvalidRequest,
    MethodNotAllowed,
    NotHere,
    TargetTooLong,
    TooManyFailures,
    TooManyOfAddress,
    TooSlow,
    Unauthorized,
    UnknownMethod,
    VersionNotSupported,
)
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import (
    BadSessionKey,
    Busy,
    Conflict,
    GatewayError,
    ModelFailed,
    NoRoute,
    NotFound,
    NotOfProject,
    StoreUnavailable,
    UnknownAgent,
)
from gateway.domain.facts import ClaimRefused
from gateway.domain.sessions import ImportRefused
from gateway.sessions.settings import SettingsRefused
from gateway.web.published.errors import ErrorAnswer, ErrorObject


@dataclass(frozen=True, slots=True)
class Failure:
    """The outside face of one kind of error. `text` replaces a message that is for the operator."""

    status: int
    rpc: int
    type: str
    text: str | None = None


INTERNAL = Failure(500, -32603, "internal_error", "internal error; the log has the details")

# A name in a request that points at nothing (an agent, a session, a route) is "not found" on every
# surface, whether it was given in a path or as a parameter.
FAILURES: Mapping[type[GatewayError], Failure] = {
    Unauthorized: Failure(401, -32001, "unauthorized"),
    Forbidden: Failure(403, -32002, "forbidden"),
    TooManyFailures: Failure(429, -32001, "rate_limited"),
    TooManyOfAddress: Failure(429, -32005, "rate_limited"),
    InvalidJson: Failure(400, -32700, "invalid_request"),
    InvalidRequest: Failure(400, -32600, "invalid_request"),
    UnknownMethod: Failure(404, -32601, "unknown_method"),
    VersionNotSupported: Failure(505, -32600, "invalid_request"),
    MethodNotAllowed: Failure(405, -32600, "invalid_request"),
    InvalidParams: Failure(422, -32602, "invalid_params"),
    ClaimRefused: Failure(422, -32602, "invalid_params"),
    SettingsRefused: Failure(422, -32602, "invalid_params"),
    ImportRefused: Failure(422, -32602, "invalid_params"),
    BodyTooLarge: Failure(413, -32600, "too_large"),
    TargetTooLong: Failure(414, -32600, "too_large"),
    HeadTooLarge: Failure(431, -32600, "too_large"),
    TooSlow: Failure(408, -32600, "timeout"),
    BadSessionKey: Failure(422, -32602, "invalid_params"),
    NotHere: Failure(404, -32601, "not_found"),
    NotFound: Failure(404, -32004, "not_found"),
    NotOfProject: Failure(403, -32002, "forbidden"),
    NoRoute: Failure(404, -32004, "not_found"),
    UnknownAgent: Failure(404, -32004, "not_found"),
    Conflict: Failure(409, -32006, "conflict"),
    AnswerTooLarge: Failure(422, -32602, "too_large"),
    BudgetExceeded: Failure(429, -32003, "budget_exceeded"),
    Busy: Failure(503, -32005, "busy"),
    StoreUnavailable: Failure(
        503, -32005, "unavailable", "the store cannot commit at the moment; nothing was accepted"
    ),
    ModelFailed: Failure(502, -32603, "provider_error", "the model provider failed"),
}


def failure_of(error: BaseException) -> Failure:
    """The face of an error; what the table does not know is internal and shows nothing."""
    for kind in type(error).__mro__:
        if found := FAILURES.get(kind):
            return found
    return INTERNAL


def error_object(error: BaseException) -> ErrorObject:
    """The object under `error` in HTTP, and the `data` of a JSON-RPC error."""
    failure = failure_of(error)
    known = isinstance(error, GatewayError) and failure is not INTERNAL
    shown: ErrorObject = {
        "type": failure.type,
        "code": error.code if known else INTERNAL.type,  # type: ignore[attr-defined]  # known: a GatewayError
        "message": failure.text or str(error),
        "retryable": bool(known and error.retryable),  # type: ignore[attr-defined]  # as above
    }
    if known and (wait := getattr(error, "retry_after_s", None)) is not None:
        shown["retry_after_s"] = round(wait, 3)
    match error:
        case BudgetExceeded():
            shown.update(
                {
                    "scope": error.scope,
                    "used": error.used,
                    "reserved": error.reserved,
                    "limit": error.limit,
                    "unit": error.unit,
                    "resets_at": error.resets_at,
                }
            )
        case InvalidParams(problems=problems) if problems:
            shown["problems"] = [{"param": where, "message": what} for where, what in problems]
    return shown


def error_body(error: BaseException) -> bytes:
    answer: ErrorAnswer = {"error": error_object(error)}
    return to_json(answer)


def error_headers(error: BaseException) -> dict[str, str]:
    """What a status wants said in a header."""
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, MethodNotAllowed):
        return {"allow": error.allow}
    wait = getattr(error, "retry_after_s", None)
    if wait is None or failure_of(error) is INTERNAL:
        return {}
    return {"retry-after": str(max(1, ceil(wait)))}


def error_response(error: BaseException) -> Response:
    return Response(
        error_body(error),
        failure_of(error).status,
        error_headers(error),
        media_type="application/json",
    )


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A plain value as JSON; dates as ISO 8601 with Z."""
    body = to_json(value, inf_nan_mode="null")
    return Response(body, status, headers, media_type="application/json")
