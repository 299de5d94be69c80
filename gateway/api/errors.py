"""What the front door itself refuses; each text may be shown to whoever asked."""

from collections.abc import Sequence

from gateway.domain.errors import Busy, GatewayError


class Unauthorized(GatewayError):
    """Missing and wrong credentials read the same."""

    code = "unauthorized"

    def __init__(self, message: str = "a valid bearer token is required") -> None:
        super().__init__(message)


class TooManyFailures(GatewayError):
    """A wrong token of an address that guesses. It is told `delay_s` late."""

    code = "too_many_failures"
    retryable = True

    def __init__(self, retry_after_s: float, delay_s: float = 0.0) -> None:
        super().__init__(
            "too many wrong tokens from your address: check your token, and try again later"
        )
        self.retry_after_s, self.delay_s = retry_after_s, delay_s


def delay_of(error: GatewayError) -> float:
    """How late it is told, in seconds."""
    return error.delay_s if isinstance(error, TooManyFailures) else 0.0


class Forbidden(GatewayError):
    code = "forbidden"

    def __init__(self, message: str = "your token does not allow this") -> None:
        super().__init__(message)


class HostRefused(Forbidden):
    code = "host_refused"

    def __init__(self) -> None:
        super().__init__(
            "this gateway does not answer to that Host; add its origin to [gateway] allowed_origins"
        )


class OriginRefused(Forbidden):
    code = "origin_refused"

    def __init__(self) -> None:
        super().__init__("this Origin is not in [gateway] allowed_origins")


class InvalidRequest(GatewayError):
    """It does not even say what is wanted."""

    code = "invalid_request"


class InvalidJson(InvalidRequest):
    code = "invalid_json"


class VersionNotSupported(GatewayError):
    code = "http_version_not_supported"

    def __init__(self) -> None:
        super().__init__("this gateway speaks HTTP/1.1 and HTTP/1.0")


class NotUpgradable(InvalidRequest):
    """An upgrade that is not a WebSocket handshake of RFC 6455."""

    code = "invalid_handshake"


class UnknownMethod(GatewayError):
    code = "unknown_method"


class InvalidParams(GatewayError):
    """`problems` says for each parameter what is wrong with it."""

    code = "invalid_params"

    def __init__(self, message: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class BodyTooLarge(GatewayError):
    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")


class AnswerTooLarge(GatewayError):
    """It would not fit into what a socket holds for its reader."""

    code = "answer_too_large"


class Stopping(Busy):
    code = "stopping"

    def __init__(self) -> None:
        super().__init__(
            "the gateway stops before it could answer; ask again in a moment, with the same "
            "Idempotency-Key if there was one",
            retry_after_s=5.0,
        )


class TargetTooLong(GatewayError):
    code = "target_too_long"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request target is longer than {limit} bytes")


class HeadTooLarge(GatewayError):
    code = "headers_too_large"

    def __init__(self) -> None:
        super().__init__("too many or too large headers")


class TooSlow(GatewayError):
    code = "too_slow"

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} did not arrive in time")


class Full(Busy):
    code = "too_many_connections"

    def __init__(self) -> None:
        super().__init__("too many connections", retry_after_s=5.0)


class TooManyOfAddress(GatewayError):
    code = "too_many_connections"
    retryable = True

    def __init__(self) -> None:
        super().__init__("too many connections from your address")
        self.retry_after_s = 5.0


class NotHere(GatewayError):
    code = "not_found"

    def __init__(self) -> None:
        super().__init__("there is nothing at this address")


class MethodNotAllowed(GatewayError):
    """`allow`: those that the address knows, as the header has them."""

    code = "method_not_allowed"

    def __init__(self, allow: str) -> None:
        super().__init__("this address does not know that method")
        self.allow = allow


class CannotListen(GatewayError):
    code = "cannot_listen"

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port}: {why}; set another [gateway] bind or port"
        )
        self.host, self.port = host, port


class AddressInUse(CannotListen):
    """Somebody else listens there."""

    code = "address_in_use"
