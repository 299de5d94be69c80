"""Recipes of descriptions at work: requests filled in, conditions met, answers of platforms read."""

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
_LONGEST_WORD = 300  # also of an id
_UNSURE = frozenset({500, 502, 504})  # whoever says so may have failed after the message was made
_PLACEHOLDER = re.compile(
    r"(?<!\$)\{(api_base|webhook_url|state|(?:config|kept|frame)\.[A-Za-z0-9_.-]+)\}"
)
_AS_IT_IS = ("api_base", "webhook_url")  # in a URL: they are URLs themselves


class RecipeUnfilled(GatewayError):
    """A recipe of a channel adapter names something that is not there."""

    code = "config_error"

    def __init__(self, name: str) -> None:
        super().__init__(f"a recipe of the adapter needs {{{name}}}, and there is none")
        self.name = name


@dataclass(frozen=True, slots=True)
class Values:
    """What the placeholders of a recipe stand for; `state` is empty before there is one."""

    api_base: str | None = None
    webhook_url: str | None = None
    state: str = ""
    config: Table = field(default_factory=dict)
    kept: Table = field(default_factory=dict)
    frame: object = None


def at(value: object, path: str) -> object:
    """What the path leads to in a JSON value; None where there is nothing."""
    for name in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and len(name) < 10:
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value


def plain(name: str, value: object) -> str:
    """As a text. Raises Denied: platforms and adapters write values, and none of them may call for
    a secret."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "${" in text:
        raise Denied(f"the value of {{{name}}} reads like a placeholder of a secret")
    return text


def fits(when: Table, value: object) -> bool:
    """Whether each path leads to what is written there; null stands for nothing, too."""
    pairs = [(at(value, path), wanted) for path, wanted in when.items()]
    return all(
        found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
        for found, wanted in pairs
    )


def fill_call(recipe: CallRecipe, values: Values, timeout_s: float = 30.0) -> FetchRequest:
    """The request that a recipe makes. Raises RecipeUnfilled, Denied.

    In a URL a value is percent-encoded, in a JSON body it is JSON. Secrets stay to be filled in.
    """
    headers = tuple((name, _fill(text, values, plain)) for name, text in recipe.headers.items())
    if recipe.body.lstrip().startswith(("{", "[")):
        try:
            body = fill_frame(json.loads(recipe.body), values)
        except ValueError as error:
            raise Denied(f"the body of a recipe is no JSON: {recipe.body[:100]!r}") from error
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
    """JSON text; a value that is one placeholder and nothing else keeps the type of what it stands
    for. Such a placeholder that begins with `null_for` is null if there is nothing. Raises
    RecipeUnfilled, Denied."""

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
        plain(name, value)  # refuses what must not be sent
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
    """`after_s`: the platform named the wait. `is_unsure`: it may have done what it was asked."""

    why: str
    after_s: float | None
    is_unsure: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    peer: str
    why: str


@dataclass(frozen=True, slots=True)
class Declined:
    """Asking again would not help; `is_ours`: nor would asking for another peer."""

    why: str
    is_ours: bool = False


Answer = Arrived | TryAgain | Moved | Declined


def read_answer(outbound: Outbound, fetched: Fetched) -> Answer:
    """The outcome of a request, read as the description has it."""
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
    """Words and numbers are texts, anything else is none."""
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
        except (ValueError, OverflowError):  # a date, which nobody sends to programs
            continue
        if seconds >= 0:  # NaN is not
            return min(seconds, LONGEST_WAIT_S)
    return None
