"""Capabilities as they are written: `type:value`, read into grants; grants write themselves."""

import re

from gateway.domain.errors import GatewayError
from gateway.domain.plugins import (
    USUAL_PORT,
    Capability,
    FunctionGrant,
    HttpGrant,
    Origin,
    StoreGrant,
    canonical_host,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[^\]]*\]|[^:/]+)(?::(?P<port>[0-9]{1,5}))?"
)
FORMS = "http:HOST, http:SCHEME://HOST:PORT, store:NAME[:shared][:ro] or host_function:NAME"


class BadCapability(GatewayError):
    code = "bad_capability"

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(f"capability {text[:100]!r} {problem}")
        self.problem = problem


def parse_capability(text: str) -> Capability:
    """Raises BadCapability with what is wrong and how to write it."""
    kind, colon, value = text.partition(":")
    if not colon:
        raise BadCapability(text, f"is not of the form type:value; write {FORMS}")
    match kind:
        case "http":
            return HttpGrant(_origin(text, value))
        case "store":
            return _store(text, value)
        case "host_function":
            if not _NAME.fullmatch(value):
                raise BadCapability(text, "names no host function; write host_function:NAME")
            return FunctionGrant(value)
    raise BadCapability(text, f"has no known type; write {FORMS}")


def _store(text: str, value: str) -> StoreGrant:
    namespace, *marks = value.split(":")
    if not _NAME.fullmatch(namespace) or marks not in ([], ["ro"], ["shared"], ["shared", "ro"]):
        raise BadCapability(text, "is not store:NAME, store:NAME:ro, store:NAME:shared[:ro]")
    return StoreGrant(namespace, is_shared="shared" in marks, is_read_only="ro" in marks)


def _origin(text: str, value: str) -> Origin:
    parts = _ADDRESS.fullmatch(value.lower()) if value.isascii() else None
    if parts is None:
        raise BadCapability(text, "names no host; write http:HOST or http:SCHEME://HOST:PORT")
    if parts["scheme"] is None and parts["port"] is not None:
        raise BadCapability(text, f"needs its scheme: write http:https://{value}")
    scheme = parts["scheme"] or "https"
    host, port = canonical_host(parts["host"]), int(parts["port"] or USUAL_PORT[scheme])
    if host is None:
        raise BadCapability(text, "names no host exactly; wildcards and short addresses are none")
    if not 0 < port < 65_536:
        raise BadCapability(text, "has a port that is none")
    return Origin(scheme, host, port)
