"""What to say when the network did not bring an answer."""

import ssl
from socket import gaierror

# Most special first.
_WHAT: tuple[tuple[type[Exception], str], ...] = (
    (ssl.CertificateError, "has no certificate that this machine trusts"),
    (ssl.SSLError, "does not speak TLS as this machine does"),
    (gaierror, "is not a name that can be resolved"),
)


def what_failed(error: Exception) -> str:
    """The rest of a sentence that begins with the host; never the URL, headers or a body."""
    for kind, what in _WHAT:
        if isinstance(error, kind):
            return what
    reason = error.strerror if isinstance(error, OSError) and error.strerror else None
    return f"cannot be reached ({reason or type(error).__name__})"
