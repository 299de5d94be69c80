"""Errors as clients see them: one table and one shape for HTTP and JSON-RPC.

The errors of the front door come first. Clients may see each of their texts.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

from gateway.api.chunks import Spent
from gateway.api.declarations import Value, build
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
from gateway.domain.sessions import ImportRefused, SettingsRefused


class PlainRefusal(GatewayError):
    """An error whose message is `text` unless the caller gives another."""

    text = ""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.text if message is None else message)


class Unauthorized(PlainRefusal):
    """Refuses missing and wrong credentials with the same message."""

    code = "unauthorized"
    text = "a valid bearer token is required"


class TooManyFailures(GatewayError):
    """Refuses an address that sent too many wrong tokens. The answer is sent after `delay_s` seconds."""

    code = "too_many_failures"
    retryable = True

    def __init__(self, retry_after_s: float, delay_s: float = 0.0) -> None:
        super().__init__(
            "too many wrong tokens from your address; check your token and try again later"
        )
        self.retry_after_s, self.delay_s = retry_after_s, delay_s


def delay_of(error: GatewayError) -> float:
    """Returns the seconds to wait before the error is sent."""
    return error.delay_s if isinstance(error, TooManyFailures) else 0.0


class Forbidden(PlainRefusal):
    code = "forbidden"
    text = "your token does not allow this"


class HostRefused(Forbidden):
    code = "host_refused"
    text = "the gateway does not serve this Host; add its origin to [gateway] allowed_origins"


class OriginRefused(Forbidden):
    code = "origin_refused"
    text = "this Origin is not in [gateway] allowed_origins"


class InvalidRequest(GatewayError):
    """The request does not follow the protocol."""

    code = "invalid_request"


class InvalidJson(InvalidRequest):
    code = "invalid_json"


class VersionNotSupported(PlainRefusal):
    code = "http_version_not_supported"
    text = "the gateway supports HTTP/1.1 and HTTP/1.0"


class NotUpgradable(InvalidRequest):
    """The request to upgrade is not a WebSocket handshake of RFC 6455."""

    code = "invalid_handshake"


class UnknownMethod(GatewayError):
    code = "unknown_method"


class InvalidParams(GatewayError):
    """Some parameters are wrong; `problems` has a message for each."""

    code = "invalid_params"

    def __init__(self, message: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def wrong(param: str, what: str) -> InvalidParams:
    """Returns the error for one wrong parameter."""
    return InvalidParams(f"{param}: {what}", [(param, what)])


class BodyTooLarge(GatewayError):
    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")


class AnswerTooLarge(GatewayError):
    """The answer exceeds the send buffer of a WebSocket."""

    code = "answer_too_large"


class Stopping(Busy):
    code = "stopping"

    def __init__(self) -> None:
        super().__init__(
            "the gateway stopped before it could answer; repeat the request in a moment, with the "
            "same Idempotency-Key if it had one",
            retry_after_s=5.0,
        )


class TargetTooLong(GatewayError):
    code = "target_too_long"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request target is longer than {limit} bytes")


class HeadTooLarge(PlainRefusal):
    code = "headers_too_large"
    text = "too many or too large headers"


class TooSlow(GatewayError):
    code = "too_slow"

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} did not arrive in time")


class Full(Busy):
    code = "too_many_connections"

    def __init__(self) -> None:
        super().__init__("too many connections", retry_after_s=5.0)


class TooManyOfAddress(PlainRefusal):
    code = "too_many_connections"
    text = "too many connections from your address"
    retryable = True
    retry_after_s = 5.0


class NotHere(PlainRefusal):
    code = "not_found"
    text = "there is no resource at this path"


class MethodNotAllowed(GatewayError):
    """`allow` is the value of the header: the methods that the path supports."""

    code = "method_not_allowed"

    def __init__(self, allow: str) -> None:
        super().__init__("this path does not support that method")
        self.allow = allow


class CannotListen(GatewayError):
    code = "cannot_listen"

    def __init__(self, host: str, port: int, why: str) -> None:
        self.port = port
        super().__init__(
            f"cannot listen on {host}:{port}: {why}; set another [gateway] bind or port, or start with "
            "`exogate run --port 0` to listen on any free port"
        )


class AddressInUse(CannotListen):
    """Another process listens on the address."""

    code = "address_in_use"


# -- errors on the wire


@dataclass(frozen=True, slots=True)
class Failure:
    """The statuses and the type of an error class. `text` replaces messages that are only for the operator."""

    status: int
    rpc: int
    type: str
    text: str | None = None


INTERNAL = Failure(500, -32603, "internal_error", "internal error; the log has the details")

# A request that names a missing agent, session or route gets "not found" everywhere, whether the name is in
# the path or in a parameter.
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
        503, -32005, "unavailable", "the store cannot commit; nothing was accepted"
    ),
    ModelFailed: Failure(502, -32603, "provider_error", "the model provider failed"),
}


def failure_of(error: BaseException) -> Failure:
    """Returns the failure for an error. An error that is not in the table is internal and shows no details."""
    for kind in type(error).__mro__:
        if found := FAILURES.get(kind):
            return found
    return INTERNAL


class Problem(Value):
    """A problem with one parameter; `param` is its path."""

    param: str
    message: str


class ErrorObject(Spent):
    """An error. `type` is a broad class, `code` the exact cause; `message` may be shown to users. The budget
    fields are present if a budget refused the request."""

    type: str
    code: str
    message: str
    retryable: bool
    problems: list[Problem] | None = None


class ErrorAnswer(Value):
    """The body of every error response except those of the OpenAI-compatible API."""

    error: ErrorObject


def error_object(error: BaseException) -> ErrorObject:
    """Returns the object under `error` in HTTP, which is also the `data` of a JSON-RPC error."""
    failure = failure_of(error)
    if failure is INTERNAL or not isinstance(error, GatewayError):
        text = failure.text or str(error)
        return ErrorObject(type=failure.type, code=INTERNAL.type, message=text, retryable=False)
    wait = getattr(error, "retry_after_s", None)
    problems = error.problems if isinstance(error, InvalidParams) else ()
    return build(
        ErrorObject,
        error.facts if isinstance(error, BudgetExceeded) else {},
        type=failure.type,
        code=error.code,
        message=failure.text or str(error),
        retryable=error.retryable,
        retry_after_s=None if wait is None else round(wait, 3),
        problems=[Problem(param=where, message=what) for where, what in problems] or None,
    )


def error_headers(error: BaseException) -> dict[str, str]:
    """Returns the headers that the status of an error requires."""
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, MethodNotAllowed):
        return {"allow": error.allow}
    wait = getattr(error, "retry_after_s", None)
    if wait is None or failure_of(error) is INTERNAL:
        return {}
    return {"retry-after": str(max(1, ceil(wait)))}


# -- explanations of error codes, from errors.toml

FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The meaning of a code: of an error, a configuration problem, a JSON-RPC error, a closed connection or an
    exit. `see` lists related codes."""

    code: str
    title: str
    about: str
    fix: str
    example: str = ""
    see: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        yield f"{self.code}: {self.title}"
        yield from ("", self.about)
        if self.example:
            yield from ("", *(f"    {line}" for line in self.example.splitlines()))
        yield from ("", f"What to do: {self.fix}")
        if self.see:
            yield from ("", f"See also: {', '.join(self.see)}")


@cache
def explanations() -> Mapping[str, Explanation]:
    """Returns the explanations by code, in the order of the documentation."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        code: Explanation(code, **{**one, "see": tuple(one.get("see", ()))})
        for code, one in found.items()
    }


def find_explanation(code: str) -> Explanation | None:
    """Returns the explanation of a code, ignoring case; None if the code is unknown."""
    by_word = {one.lower(): text for one, text in explanations().items()}
    return by_word.get(code.strip().lower())
