"""Recipes brought to life: their texts filled in, values found by paths, conditions met."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from gateway.channels.adapters import CallRecipe, Table
from gateway.domain.errors import Denied, GatewayError
from gateway.domain.ports import FetchRequest

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
    return all(_same(at(value, path), wanted) for path, wanted in when.items())


def _same(found: object, wanted: object) -> bool:
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def fill_call(recipe: CallRecipe, values: Values, timeout_s: float = 30.0) -> FetchRequest:
    """The request that a recipe makes. Raises RecipeUnfilled, Denied.

    In a URL a value is percent-encoded, in a JSON body it is JSON. Secrets stay to be filled in.
    """
    return FetchRequest(
        recipe.method,
        fill_url(recipe.url, values),
        tuple((name, _fill(text, values, plain)) for name, text in recipe.headers.items()),
        _body(recipe, values),
        timeout_s,
    )


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
    filled = _filled(frame, values, null_for)
    return json.dumps(filled, ensure_ascii=False, separators=(",", ":"))


def _body(recipe: CallRecipe, values: Values) -> bytes:
    if recipe.body.lstrip().startswith(("{", "[")):
        try:
            frame = json.loads(recipe.body)
        except ValueError as error:
            raise Denied(f"the body of a recipe is no JSON: {recipe.body[:100]!r}") from error
        return fill_frame(frame, values).encode()
    return _fill(recipe.body, values, plain).encode()


def _filled(frame: object, values: Values, null_for: str | None) -> object:
    match frame:
        case str():
            whole = _PLACEHOLDER.fullmatch(frame)
            if whole is None:
                return _fill(frame, values, plain)
            return _whole(whole[1], values, null_for)
        case Mapping():
            return {name: _filled(part, values, null_for) for name, part in frame.items()}
        case list() | tuple():
            return [_filled(part, values, null_for) for part in frame]
    return frame


def _whole(name: str, values: Values, null_for: str | None) -> object:
    try:
        value = _value(name, values)
    except RecipeUnfilled:
        if null_for is not None and name.startswith(null_for):
            return None
        raise
    plain(name, value)  # refuses what must not be sent
    return value


def _fill(text: str, values: Values, write: Callable[[str, object], str]) -> str:
    return _PLACEHOLDER.sub(lambda found: write(found[1], _value(found[1], values)), text)


def _value(name: str, values: Values) -> object:
    whose, _, path = name.partition(".")
    value = getattr(values, whose)
    if path:
        value = at(value, path)
    if value is None:
        raise RecipeUnfilled(name)
    return value
