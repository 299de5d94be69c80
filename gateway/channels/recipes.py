"""Applies the recipes of a description: fills requests, matches conditions, reads answers."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from gateway.channels.adapter_json import read_json
from gateway.channels.adapters import CallRecipe, Outbound, Table
from gateway.domain.errors import Denied, GatewayError
from gateway.domain.ports import Fetched, FetchRequest
from gateway.domain.text import printable

LONGEST_WAIT_S = 86_400.0
_LONGEST_WORD = 300  # characters of an error word or an id
_UNSURE = frozenset({500, 502, 504})  # the platform may have created the message
_PLACEHOLDER = re.compile(
    r"(?<!\$)\{(api_base|webhook_url|state|(?:config|kept|frame)\.[A-Za-z0-9_.-]+)\}"
)
_AS_IT_IS = ("api_base", "webhook_url")  # URLs, which a URL holds without encoding


class RecipeUnfilled(GatewayError):
    """A recipe of a channel adapter has a placeholder without a value."""

    code = "config_error"

    def __init__(self, name: str) -> None:
        super().__init__(f"a recipe of the adapter needs {{{name}}}, which has no value")
        self.name = name


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a recipe's placeholders. `state` is empty before the first commit."""

    api_base: str | None = None
    webhook_url: str | None = None
    state: str = ""
    config: Table = field(default_factory=dict)
    kept: Table = field(default_factory=dict)
    frame: object = None


def at(value: object, path: str) -> object:
    """Returns the part of a JSON value at a path; None if there is none."""
    for name in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and len(name) < 10:
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value


def plain(name: str, value: object) -> str:
    """Returns a value as text. Raises Denied for the placeholder of a secret, because platforms and
    adapters write values."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "${" in text:
        raise Denied(f"the value of {{{name}}} looks like the placeholder of a secret")
    return text


def fits(when: Table, value: object) -> bool:
    """True if each path of `when` has its value; null also matches a missing part."""
    pairs = [(at(value, path), wanted) for path, wanted in when.items()]
    return all(
        found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
        for found, wanted in pairs
    )


def fill_call(recipe: CallRecipe, values: Values, timeout_s: float = 30.0) -> FetchRequest:
    """Returns the request of a recipe, still with the placeholders of secrets.

    A URL holds its values percent-encoded, a JSON body holds them as JSON. Raises RecipeUnfilled,
    Denied.
    """
    headers = tuple((name, _fill(text, values, plain)) for name, text in recipe.headers.items())
    if recipe.body.lstrip().startswith(("{", "[")):
        try:
            body = fill_frame(json.loads(recipe.body), values)
        except ValueError as error:
            raise Denied(f"the body of a recipe is not JSON: {recipe.body[:100]!r}") from error
    else:
        body = _fill(recipe.body, values, plain)
    url = fill_url(recipe.url, values)
    return FetchRequest(recipe.method, url, headers, body.encode(), timeout_s)


def fill_url(text: str, values: Values) -> str:
    """Raises RecipeUnfilled, Denied."""

    def encoded(name: str, value: object) -> str:
        written = plain(name, value)
        return written.rstrip("/") if name in _AS_IT_IS else quote(written, safe="")

    return _fill(text, values, encoded)


def fill_frame(frame: object, values: Values, *, null_for: str | None = None) -> str:
    """Returns JSON text. A string that is exactly one placeholder becomes its value with its type;
    with the prefix `null_for` and without a value it becomes null. Raises RecipeUnfilled, Denied."""

    def filled(part: object) -> object:
        match part:
            case str():
                whole = _PLACEHOLDER.fullmatch(part)
                return whole_value(whole[1]) if whole else _fill(part, values, plain)
            case Mapping():
                return {name: filled(one) for name, one in part.items()}
            case list() | tuple():
                return [filled(one) for one in part]
        return part

    def whole_value(name: str) -> object:
        try:
            value = _value(name, values)
        except RecipeUnfilled:
            if null_for is not None and name.startswith(null_for):
                return None
            raise
        plain(name, value)  # refuses the placeholder of a secret
        return value

    return json.dumps(filled(frame), ensure_ascii=False, separators=(",", ":"))


def _fill(text: str, values: Values, write: Callable[[str, object], str]) -> str:
    return _PLACEHOLDER.sub(lambda found: write(found[1], _value(found[1], values)), text)


def _value(name: str, values: Values) -> object:
    source, _, path = name.partition(".")
    value = getattr(values, source)
    if path:
        value = at(value, path)
    if value is None:
        raise RecipeUnfilled(name)
    return value


# ------------------------------------------------------------------------- answers of platforms
@dataclass(frozen=True, slots=True)
class Arrived:
    message_id: str | None


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The request should be repeated, after `after_s` seconds if the platform named a wait.
    `is_unsure` means that the platform may have executed it."""

    why: str
    after_s: float | None
    is_unsure: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    peer: str
    why: str


@dataclass(frozen=True, slots=True)
class Declined:
    """The platform refused the request for good; with `is_ours` it would refuse every peer."""

    why: str
    is_ours: bool = False


Answer = Arrived | TryAgain | Moved | Declined


def read_answer(outbound: Outbound, fetched: Fetched) -> Answer:
    """Returns the outcome of a request by the rules of the description."""
    said = read_json(fetched.body)
    word = _text(outbound.error, said)
    is_ok = 200 <= fetched.status < 300
    is_ok = is_ok and (outbound.ok is None or at(said, outbound.ok) is not False)
    if is_ok or (word is not None and word.startswith(outbound.done_errors)):
        return Arrived(_text(outbound.message_id, said))
    why = f"the platform answered {fetched.status}{f': {printable(word[:_LONGEST_WORD])}' if word else ''}"
    if (peer := _text(outbound.moved_to, said)) is not None:
        return Moved(peer, why)
    if fetched.status in outbound.retry_statuses or word in outbound.retry_errors:
        wait_s = _wait_s(outbound.retry_after, said, dict(fetched.headers))
        return TryAgain(why, wait_s, is_unsure=fetched.status in _UNSURE)
    return Declined(why, is_ours=fetched.status == 401)


def _text(path: str | None, said: object) -> str | None:
    """Returns a word or a number as text; None for other values."""
    value = None if path is None else at(said, path)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value)[:_LONGEST_WORD] or None


def _wait_s(places: Sequence[str], said: object, headers: Mapping[str, str]) -> float | None:
    for place in places:
        kind, _, name = place.partition(":")
        value = headers.get(name.lower()) if kind == "header" else at(said, place)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            continue
        try:
            seconds = float(value)
        except (ValueError, OverflowError):  # an HTTP date is not supported
            continue
        if seconds >= 0:  # NaN is not
            return min(seconds, LONGEST_WAIT_S)
    return None
