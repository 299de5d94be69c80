"""Classifies the refusals of providers: status, code and text give a kind and a detail to show."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

from pydantic_core import from_json

from gateway.domain.errors import FailureKind, ModelFailed
from gateway.domain.scrubbing import scanner

DETAIL_CAP = 300
MAX_WAIT_S = 30 * 86_400.0  # bound of the retry-after that clients get

_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context|context (?:length|window|size)|prompt is too long"
    r"|input (?:token count|is too long|length).{0,60}(?:exceed|too long)|input is too long"
    r"|reduce the length|exceeds? the (?:available )?context|model_context_window_exceeded",
    re.IGNORECASE,
)
_SPENT = re.compile(r"insufficient_quota|insufficient credits|billing", re.IGNORECASE)
_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,9})?s")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

_STATUSES: dict[FailureKind, tuple[int, ...]] = {
    "auth": (401, 402, 403),  # 402: the account of the key cannot pay
    "not_found": (404,),
    "timeout": (408,),
    "overloaded": (409, 425, 503, 529),
    "context_overflow": (413,),
    "rate": (429,),
}
_BY_STATUS = {status: kind for kind, statuses in _STATUSES.items() for status in statuses}
_CONCLUSIVE = frozenset({401, 403, 404, 408, 429})  # statuses that the text does not override
# Names of errors inside a stream, which has no status.
_NAMES: dict[FailureKind, str] = {
    "overloaded": "overloaded_error overloaded unavailable",
    "rate": "rate_limit_error rate_limit_exceeded resource_exhausted",
    "server": "api_error server_error internal_server_error",
    "timeout": "timeout_error",
    "auth": "authentication_error permission_error invalid_api_key",
    "not_found": "not_found_error model_not_found",
    "bad_request": "invalid_request_error invalid_argument",
    "context_overflow": "request_too_large",
}
_BY_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class Scrub:
    """Removes secrets from a text of a server, and shortens it to a log line."""

    secrets: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        text = scanner(tuple((secret, "***") for secret in self.secrets)).text(text)
        text = _UNPRINTABLE.sub(" ", text).strip()
        return text if len(text) <= DETAIL_CAP else text[: DETAIL_CAP - 1] + "…"

    def __repr__(self) -> str:
        return "Scrub(***)"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error in a provider's answer."""

    message: str
    names: tuple[str, ...] = ()  # type, code and status as words, in lower case
    code: int | None = None  # a status as a number in the body
    wait_s: float | None = None  # from the body


def read_refusal(body: object) -> Refusal:
    """Reads the error from an object, a list of objects, or text."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, Mapping):
        return Refusal(body if isinstance(body, str) else "")
    error: Any = body.get("error", body)
    if not isinstance(error, Mapping):
        return Refusal(str(error), _words(body.get("type"), body.get("code")))
    message = error.get("message") or error.get("detail") or body.get("message") or ""
    code = error.get("code")
    return Refusal(
        str(message),
        _words(error.get("type"), code, error.get("status")),
        code if type(code) is int else None,
        _wait_s(error.get("details")),
    )


def _wait_s(details: object) -> float | None:
    """Reads `"retryDelay": "37.5s"` from the details of an error; Google sends it instead of a header."""
    for one in details if isinstance(details, list) else ():
        delay = one.get("retryDelay") if isinstance(one, Mapping) else None
        if isinstance(delay, str) and _SECONDS.fullmatch(delay):
            return float(delay[:-1])
    return None


def _words(*values: object) -> tuple[str, ...]:
    return tuple(value.lower() for value in values if isinstance(value, str))


def kind_of(refusal: Refusal, status: int | None) -> FailureKind:
    """Returns the kind of a failure; `status` is None for an error inside a stream."""
    words = " ".join((refusal.message, *refusal.names))
    status = status or refusal.code
    if status not in _CONCLUSIVE and _OVERFLOW.search(words):
        return "context_overflow"
    if status == 429 and _is_spent(refusal, words):
        return "auth"
    if status is not None and 300 <= status < 600:
        return _BY_STATUS.get(status, "server" if status >= 500 else "bad_request")
    return next((_BY_NAME[name] for name in refusal.names if name in _BY_NAME), "server")


def _is_spent(refusal: Refusal, words: str) -> bool:
    """True if the account has no credit. Google mentions billing in every refusal, but then gives a
    time to wait."""
    return refusal.wait_s is None and _SPENT.search(words) is not None


def failure_of(
    provider: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    scrub: Scrub,
    now: datetime,
) -> ModelFailed:
    """Returns the failure for an answer with an error status."""
    refusal = read_refusal(_parse(body))
    message = scrub(refusal.message)
    if 300 <= status < 400:
        message = "redirects are not followed; set the final address as base_url"
    detail = f"HTTP {status}: {message}" if message else f"HTTP {status} without an explanation"
    kind, asked_s = kind_of(refusal, status), retry_after_s(headers, now)
    wait_s = refusal.wait_s if asked_s is None else asked_s
    return ModelFailed(provider, kind, detail, status=status, retry_after_s=wait_s)


def _parse(body: bytes) -> object:
    try:
        parsed: object = from_json(body)
    except ValueError:
        text = body.decode("utf-8", "replace").strip()
        return "" if text.startswith("<") else text  # the HTML page of a proxy is of no use
    return parsed


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Returns the time to wait from the headers, as milliseconds, seconds or a date; None if absent."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if isfinite(seconds):
            return min(max(0.0, seconds), MAX_WAIT_S)
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=now.tzinfo)
    return min(max(0.0, (until - now).total_seconds()), MAX_WAIT_S)
