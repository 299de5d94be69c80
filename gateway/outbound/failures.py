"""What to say when the network did not bring an answer."""

import aiohttp

# Most special first.
_WHAT: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ClientConnectorCertificateError, "has no certificate that this machine trusts"),
    (aiohttp.ClientConnectorSSLError, "does not speak TLS as this machine does"),
    (aiohttp.ClientConnectorDNSError, "is not a name that can be resolved"),
    (aiohttp.ConnectionTimeoutError, "cannot be connected in time"),
    (aiohttp.ServerDisconnectedError, "closed the connection before it answered"),
    (aiohttp.ClientPayloadError, "broke off in the middle of its answer"),
    (aiohttp.ClientResponseError, "answered something that is not HTTP"),
    (aiohttp.InvalidURL, "is no address that can be asked"),
)


def what_failed(error: Exception) -> str:
    """The rest of a sentence that begins with the host; never the URL, headers or a body."""
    for kind, what in _WHAT:
        if isinstance(error, kind):
            return what
    reason = error.strerror if isinstance(error, OSError) and error.strerror else None
    return f"cannot be reached ({reason or type(error).__name__})"
