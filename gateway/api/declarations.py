"""The vocabulary of declarations: values on the wire, parameters and their checks, methods.

This file uses only the standard library. The `web` room reads the declarations with pydantic: pydantic asks a
check for its validation schema, and a value for its published schema.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from gateway.domain.ids import SessionKey

T = TypeVar("T")
Json = dict[str, Any]
Build = Callable[[Any], Json]  # pydantic's handler: builds the schema of the inner type
_ATOMS = frozenset({str, int, float, bool, type(None), datetime})
_ABSENT = object()


def nullable() -> Any:
    """Returns the default of a field that may be absent and may be null."""
    return field(default_factory=_absent)


def _absent() -> object:
    return _ABSENT


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Declared:
    """Base class of frozen dataclasses with keyword-only fields. All subclasses share one constructor:
    generating and compiling one for each would double the start time."""

    __dataclass_fields__: ClassVar[Mapping[str, Any]]

    # Pairs of a field and its default, which is `MISSING` if the field is required.
    defaults: ClassVar[Sequence[tuple[str, Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)
        cls.defaults = tuple(
            (one.name, _ABSENT if one.default_factory is _absent else one.default)
            for one in fields(cls)  # type: ignore[arg-type]  # the line above made it a dataclass
        )

    def __init__(self, **given: object) -> None:
        held = self.__dict__
        for name, default in self.defaults:
            held[name] = given.pop(name) if name in given else default
            if held[name] is MISSING:
                raise TypeError(f"{type(self).__name__} lacks {name}")
        if given:
            raise TypeError(f"{type(self).__name__} has no {', '.join(given)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.items()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({inside})"


class Value(Declared):
    """A result, a chunk, or a part of one. A field whose default is None is absent while it is None; a field
    without a default is always present."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Json:
        """Returns the schema, in which optional fields are not required, and only `nullable` ones may be null."""
        schema: Json = handler(core)
        inside = handler.resolve_ref_schema(schema)
        for name, default in cls.defaults:
            if default is None:
                shown = inside["properties"][name]
                shown.pop("default", None)
                kinds = [kind for kind in shown.pop("anyOf") if kind != {"type": "null"}]
                shown |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
            if default in {None, _ABSENT} and name in inside.get("required", ()):
                inside["required"].remove(name)
        return schema


class Params(Declared):
    """Named parameters from a caller. The first line of the docstring is the help text of the method. The
    published name has no trailing underscore."""

    __pydantic_config__: ClassVar[Json] = {
        "extra": "forbid",
        "alias_generator": lambda name: name.rstrip("_"),
    }


def build(type_: type[T], *sources: object, **given: object) -> T:
    """Builds a value. `given` sets fields by name; each source, a mapping or an object with attributes, supplies
    fields that are still missing."""
    for source in sources:
        read = source.get if isinstance(source, Mapping) else partial(getattr, source)
        for one in fields(type_):  # type: ignore[arg-type]  # a subclass of Declared
            value = MISSING if one.name in given else read(one.name, MISSING)
            if value is not MISSING:
                given[one.name] = value
    return type_(**given)


def plain(value: Any) -> Any:
    """Converts a value to JSON types; a session key becomes its text."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is SessionKey:
        return str(value)
    if is_dataclass(kind):
        return _plain_fields(value, kind)
    if isinstance(value, Mapping):
        return {name: plain(inside) for name, inside in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [plain(inside) for inside in value]
    return value


def _plain_fields(value: Any, kind: Any) -> Json:
    shown: Json = {}
    for name, may_lack in _members(kind):
        inside = getattr(value, name)
        if not (inside is _ABSENT or (inside is None and may_lack)):
            shown[name] = inside if type(inside) in _ATOMS else plain(inside)
    return shown


def plain_changes(value: Any) -> Any:
    """Like `plain`, but omits the fields that have their defaults."""
    if isinstance(value, Declared):
        held = [(name, value.__dict__[name], usual) for name, usual in type(value).defaults]
        return {name: plain_changes(one) for name, one, usual in held if one != usual}
    if isinstance(value, list | tuple):
        return [plain_changes(inside) for inside in value]
    return value


@cache
def _members(kind: Any) -> Sequence[tuple[str, bool]]:
    """Returns the name of each field, and True if the field may be absent."""
    is_value = issubclass(kind, Value)
    return tuple((one.name, is_value and one.default is None) for one in fields(kind))


# -- checks of parameters


class Check:
    """A check of a parameter. `limits` are pydantic's constraints (`min_length`, `ge`, `strict` …). `before` and
    `after` run before and after pydantic's own check; `among` also receives the fields that were read before.
    All three raise ValueError. `says` is added to the published schema."""

    def __init__(
        self,
        *,
        before: Callable[[Any], Any] | None = None,
        after: Callable[[Any], Any] | None = None,
        among: Callable[[Any, Mapping[str, Any]], Any] | None = None,
        says: Mapping[str, Any] | None = None,
        **limits: object,
    ) -> None:
        self._before, self._after, self._among = before, after, among
        self._says, self.limits = says or {}, limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Build) -> Json:
        schema = {**handler(source), **self.limits}
        if self._before is not None:
            schema = _checked("function-before", "no-info", self._before, schema)
        if self._after is not None:
            schema = _checked("function-after", "no-info", self._after, schema)
        if (among := self._among) is not None:

            def check(value: Any, info: Any) -> Any:
                return among(value, info.data)

            schema = _checked("function-after", "with-info", check, schema)
        return schema

    def __get_pydantic_json_schema__(self, core: Any, handler: Build) -> Json:
        return {**handler(core), **self._says}


def _checked(when: str, how: str, check: Callable[..., Any], schema: Json) -> Json:
    return {"type": when, "function": {"type": how, "function": check}, "schema": schema}


def whole(**limits: Any) -> Check:
    """Returns a check for a whole number; 5.0 counts as 5, as in JSON."""
    return Check(strict=True, before=_as_whole, **limits)


def _as_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written_out(value: object) -> object:
    """Accepts RFC 3339 text only: pydantic would read a number as seconds or milliseconds since 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and _RFC_3339.fullmatch(value)):
        return value
    raise ValueError("must be a time with an offset, like 2026-01-31T12:00:00Z")


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
# The characters that str.strip removes. The handlers check for blank text themselves, with their own errors.
_BLANKS = r"\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
NOT_BLANK = {"pattern": f"[^{_BLANKS}]"}
# The syntax of SessionKey.parse: escapes stand only for the characters that need them.
_PART = r"([^%:\x00-\x1f\x7f-\x9f]|%(25|3A|[01][0-9A-F]|7F|C2%[89][0-9A-F]))*"

Text = Annotated[str, Check(min_length=1, max_length=256)]
Key = Annotated[
    str,
    Check(min_length=1, max_length=4096, says={"pattern": f"^{_PART}:{_PART}:{_PART}:{_PART}$"}),
]
Flag = Annotated[bool, Check(strict=True)]
Page = Annotated[int, whole(ge=1, le=500)]  # items of one page
Place = Annotated[int, whole(ge=1, lt=2**63)]  # a row number; stores have 63 bits
Moment = Annotated[datetime, Check(before=_written_out, tz_constraint="aware")]


# -- methods

Scope = tuple[str, ...] | None  # one of them is enough; None: every principal may call
CHAT: Scope = ("chat",)
READS: Scope = ("chat", "read")  # with `chat`, only the caller's own resources
READ: Scope = ("read",)
ADMIN: Scope = ("admin",)


@dataclass(frozen=True, slots=True)
class Verb:
    """A method as a command: `session.list` becomes `session list` unless `name` is set. The parameters in `takes`
    are positional, in that order; all others are options. `columns` names the fields of each table that shows the
    first lists of the result; `|` separates tables. The command prints `empty` if there are no rows, fails if the
    field `holds` is false, and with --json prints only the field `json`, if set. `watch_s` adds an option that
    repeats the command at this interval in seconds."""

    takes: str = ""
    columns: str = ""
    empty: str = ""
    holds: str = ""
    json: str = ""
    answer_s: float = 30.0
    watch_s: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """A JSON-RPC method. `http` is the path where `GET` does the same: its parameters come from the query, the
    first one from the path if the path has a placeholder. `errors` are its HTTP error statuses in addition to those
    of every method. `all_agents`: a token that is limited to some agents may not call it."""

    name: str
    params: type[Params]
    scope: Scope
    result: Any
    http: str = ""
    errors: tuple[int, ...] = ()
    verb: Verb | None = None
    all_agents: bool = False

    @property
    def help(self) -> str:
        """The first line of the docstring of its parameters."""
        return (self.params.__doc__ or "").partition("\n")[0]


def tagged(union: Any, tag: str = "type") -> Any:
    """Returns a union whose members differ in a constant field, the tag."""
    return Annotated[union, _Tagged(tag)]


class _Tagged:
    def __init__(self, tag: str) -> None:
        self._tag = tag

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Json:
        kinds = handler(core)["anyOf"]
        mapping = {
            handler.resolve_ref_schema(kind)["properties"][self._tag]["const"]: kind["$ref"]
            for kind in kinds
        }
        return {"oneOf": kinds, "discriminator": {"propertyName": self._tag, "mapping": mapping}}
