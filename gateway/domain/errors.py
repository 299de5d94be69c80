"""Errors that the gateway raises on purpose. The name states the fact; attributes carry the
data."""

from typing import Literal


class GatewayError(Exception):
    """The root of all errors. Its text is for the operator; `code` is stable for programs."""

    code = "internal_error"
    retryable = False


class BadSessionKey(GatewayError):
    code = "bad_session_key"

    def __init__(self, text: str) -> None:
        super().__init__(f"{text[:200]!r} is not a session key (agent:channel:account:peer)")


class NoRoute(GatewayError):
    """No binding matches, and there is no default agent."""

    code = "no_agent"

    def __init__(self, channel: str, account: str, peer: str) -> None:
        super().__init__(f"no agent configured for {channel}:{account}:{peer}")


class UnknownAgent(GatewayError):
    code = "unknown_agent"

    def __init__(self, agent_id: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no agent has id {agent_id!r}; defined: {', '.join(known)}")
        self.agent_id = agent_id


class NotOfProject(GatewayError):
    """The user does not belong to the agent's project."""

    code = "not_of_project"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"agent {agent_id!r} answers only the users of its project")


class NotFound(GatewayError):
    """The resource does not exist or belongs to someone else; the two look the same."""

    code = "not_found"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} not found")


class Conflict(GatewayError):
    """The key was used with other content, or HEAD has moved."""

    code = "conflict"


class AlreadyReceived(Conflict):
    """The message was answered without a turn; sending it again starts none."""


class Busy(GatewayError):
    """A limit is reached and nothing was accepted; the caller may retry."""

    code = "busy"
    retryable = True

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreUnavailable(GatewayError):
    """The store could not commit (disk full, read-only, I/O error); nothing was acknowledged."""

    code = "store_unavailable"
    retryable = True
    retry_after_s = 5.0


class StoreLost(StoreUnavailable):
    """The store failed so often that its state on disk is unknown; it needs a restart."""

    code = "store_lost"
    retryable = False


class StoreRefused(GatewayError):
    """The store must not be opened in its state (corrupt, newer schema, messages missing)."""

    code = "store_refused"


class StoreMisconfigured(StoreRefused):
    """The store's server rejects the configuration."""

    code = "config_error"


class NotInstalled(GatewayError):
    """A setting needs an extra that is not installed."""

    code = "config_error"

    def __init__(self, setting: str, extra: str) -> None:
        self.problem = f"{setting} needs the extra {extra!r}, which is not installed"
        in_checkout = f"python3 -m pip --python .venv install -e '.[{extra}]'"
        self.fix = f"run pip install 'exogate[{extra}]', or in a checkout {in_checkout}"
        super().__init__(f"{self.problem}: {self.fix}")


class DataDirInUse(GatewayError):
    code = "data_dir_in_use"

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(f"{path} is in use by {owner}")
        self.path, self.owner = path, owner


class SoulUnreadable(GatewayError):
    code = "soul_unreadable"


class Denied(GatewayError):
    """A plugin or a model asked for something that is not granted; it may read the text."""

    code = "denied"


class AdapterFailed(GatewayError):
    """A channel adapter returned nothing usable; the text is for the operator."""

    code = "adapter_error"


class ToolFailed(GatewayError):
    """A tool failed; the text tells the model what to do instead."""

    code = "tool_error"


FailureKind = Literal[
    "auth",  # 401, 403: the key is missing or wrong
    "rate",  # 429
    "overloaded",  # 529, 503 and their like
    "server",  # other 5xx codes
    "network",  # refused, reset, DNS
    "timeout",  # connect, first byte or between two chunks
    "truncated",  # the stream ended without its end marker
    "protocol",  # bytes that violate the protocol
    "bad_request",  # 400 and the like; a retry cannot help
    "context_overflow",  # the prompt is longer than the model can read
    "not_found",  # unknown model or wrong address
    "refused_key",  # no key is configured
    "unmetered",  # the ledger cannot be written, so nothing was sent
    "unpriced",  # the model has no price, and a budget in USD applies
]


RETRYABLE: frozenset[FailureKind] = frozenset(
    {"rate", "overloaded", "server", "network", "timeout", "truncated", "unmetered"}
)


class ModelFailed(GatewayError):
    """A provider call without a complete reply.

    `started`: text of the reply was already streamed, so a retry would be visible. Streamed
    thinking does not count. `sent`: the provider may have begun to work and to count tokens.
    """

    code = "provider_error"
    sent = True
    attempts = 1  # counted by the provider's client

    def __init__(
        self,
        provider: str,
        kind: FailureKind,
        detail: str,
        *,
        started: bool = False,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{provider}: {detail}")
        self.provider, self.kind, self.detail = provider, kind, detail
        self.started, self.status, self.retry_after_s = started, status, retry_after_s
        self.retryable = kind in RETRYABLE


class MalformedReply(ModelFailed):
    """The reply is not JSON. It was damaged on the way, so a retry is worthwhile."""

    def __init__(self, provider: str, detail: str, *, started: bool) -> None:
        super().__init__(provider, "protocol", detail, started=started)
        self.retryable = True


class NeverSent(ModelFailed):
    """Nothing of the call reached the provider."""

    sent = False


class TooLarge(NeverSent):
    """The request does not fit the model's window and was not sent; `detail` names the largest
    part."""

    def __init__(self, provider: str, detail: str) -> None:
        super().__init__(provider, "context_overflow", detail)
