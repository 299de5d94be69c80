"""What a plugin may be granted: `type:value`, read strictly, compared exactly."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from gateway.domain.errors import BadCapability

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[^\]]*\]|[^:/]+)(?::(?P<port>[0-9]{1,5}))?"
)
USUAL_PORT = {"http": 80, "https": 443}
FORMS = "http:HOST, http:SCHEME://HOST:PORT, store:NAME[:shared][:ro] or host_function:NAME"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request goes; `host` is lower case, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def is_usual(self) -> bool:
        return self.scheme == "https" and self.port == 443

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if USUAL_PORT[self.scheme] == self.port else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


@dataclass(frozen=True, slots=True)
class HttpGrant:
    """Requests to exactly this origin."""

    origin: Origin

    def __str__(self) -> str:
        origin = self.origin
        if not origin.is_usual:
            return f"http:{origin}"
        return f"http:{f'[{origin.host}]' if ':' in origin.host else origin.host}"


@dataclass(frozen=True, slots=True)
class StoreGrant:
    """One namespace of the plugin's own; each person has another unless it is `shared`."""

    namespace: str
    is_shared: bool = False
    is_read_only: bool = False

    def __str__(self) -> str:
        shared, read_only = ":shared" * self.is_shared, ":ro" * self.is_read_only
        return f"store:{self.namespace}{shared}{read_only}"


@dataclass(frozen=True, slots=True)
class FunctionGrant:
    """A host function by name: `clock`, `random`, or one that the operator registered."""

    name: str

    def __str__(self) -> str:
        return f"host_function:{self.name}"


Capability = HttpGrant | StoreGrant | FunctionGrant


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


def canonical_host(text: str) -> str | None:
    """A host as it is compared: lower case, an address in its one usual form; None if it is none.

    Spellings that only a resolver understands (`127.1`, `0x7f.1`, `2130706433`) are none.
    """
    host = text.lower() if text.isascii() else ""
    if host.startswith("[") and host.endswith("]"):
        return _address(host[1:-1], IPv6Address)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return _address(host, IPv4Address)
    return host if _HOST_NAME.fullmatch(host) else None


def _address(text: str, kind: type[IPv4Address | IPv6Address]) -> str | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return str(address) if isinstance(address, kind) and "%" not in text else None
