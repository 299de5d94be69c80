"""The words of a declaration: values on the wire, parameters and their rules, methods.

Everything here is the standard library's. Where bytes come in and go out, pydantic reads the declarations: it asks
a rule for the schema that it checks by, and a value for the schema that is published.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from gateway.domain.ids import SessionKey

T = TypeVar("T")
Json = dict[str, Any]
Build = Callable[[Any], Json]  # what pydantic hands on: makes the schema of what is inside
_ATOMS = frozenset({str, int, float, bool, type(None), datetime})
_ABSENT = object()


def nullable() -> Any:
    """The default of a field that may be left out, and may be null."""
    return field(default_factory=_absent)


def _absent() -> object:
    return _ABSENT


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Declared:
    """Its subclasses are dataclasses whose fields are given by name and never change. They share one
    constructor: to generate and compile one for each of them would double the time of a start."""

    __dataclass_fields__: ClassVar[Mapping[str, Any]]

    defaults: ClassVar[Sequence[tuple[str, Any]]]  # of each field; `MISSING` if it has none

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)
        cls.defaults = tuple(
            (one.name, _ABSENT if one.default_factory is _absent else one.default)
            for one in fields(cls)  # type: ignore[arg-type]  # it is one by now
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
    """A result, a chunk or a part of one. A field whose default is None is left out while it is None; one
    without a default is always there."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Json:
        """What may be left out is not required, and is never null but by `nullable`."""
        schema: Json = handler(core)
        inside = handler.resolve_ref_schema(schema)
        for name, default in cls.defaults:
            if default is None:
                told = inside["properties"][name]
                told.pop("default", None)
                kinds = [kind for kind in told.pop("anyOf") if kind != {"type": "null"}]
                told |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
            if default in {None, _ABSENT} and name in inside.get("required", ()):
                inside["required"].remove(name)
        return schema


class Params(Declared):
    """What a caller gives, by name. Of a method's parameters the first line of the docstring says what the method
    is for. An underscore at the end of a name is no part of it."""

    __pydantic_config__: ClassVar[Json] = {
        "extra": "forbid",
        "alias_generator": lambda name: name.rstrip("_"),
    }


def build(type_: type[T], *sources: object, **given: object) -> T:
    """A value with the fields that are given, and the others from the sources: mappings, or values with
    attributes of those names."""
    for source in sources:
        held = source if isinstance(source, Mapping) else _Attributes(source)
        for one in fields(type_):  # type: ignore[arg-type]  # a subclass of Declared
            if one.name not in given and one.name in held:
                given[one.name] = held[one.name]
    return type_(**given)


class _Attributes:
    def __init__(self, value: object) -> None:
        self._value = value

    def __contains__(self, name: str) -> bool:
        return hasattr(self._value, name)

    def __getitem__(self, name: str) -> object:
        return getattr(self._value, name)


def plain(value: Any) -> Any:
    """A value as mappings and lists of what JSON encoders know; a session key as its text."""
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


def differing(value: Any) -> Any:
    """As `plain`, without the fields that are as their defaults."""
    if isinstance(value, Declared):
        told = [(name, value.__dict__[name], usual) for name, usual in type(value).defaults]
        return {name: differing(one) for name, one, usual in told if one != usual}
    if isinstance(value, list | tuple):
        return [differing(inside) for inside in value]
    return value


@cache
def _members(kind: Any) -> Sequence[tuple[str, bool]]:
    """Names, and whether the field may be left out."""
    is_value = issubclass(kind, Value)
    return tuple((one.name, is_value and one.default is None) for one in fields(kind))


# -- rules for parameters


class Check:
    """What a parameter may be. `limits` are those of pydantic's own checks (`min_length`, `ge`, `strict` …); `before`
    and `after` raise ValueError, `among` as well, which also sees what was read before it; `says` stands in the published schema."""

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
    """A whole number. To JSON 5.0 is the same number as 5."""
    return Check(strict=True, before=_as_whole, **limits)


def _as_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written_out(value: object) -> object:
    """Else numbers would be taken for seconds since 1970, or for milliseconds if they are large."""
    if isinstance(value, datetime) or (isinstance(value, str) and _RFC_3339.fullmatch(value)):
        return value
    raise ValueError("has to be a time like 2026-01-31T12:00:00Z, with its offset")


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
# What str.strip takes away. A blank text is looked for by hand: with errors of its own.
_BLANKS = r"\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
NOT_BLANK = {"pattern": f"[^{_BLANKS}]"}
# What SessionKey.parse takes: escapes stand for what they have to, and for nothing else.
_PART = r"([^%:\x00-\x1f\x7f-\x9f]|%(25|3A|[01][0-9A-F]|7F|C2%[89][0-9A-F]))*"

Text = Annotated[str, Check(min_length=1, max_length=256)]
Key = Annotated[
    str,
    Check(min_length=1, max_length=4096, says={"pattern": f"^{_PART}:{_PART}:{_PART}:{_PART}$"}),
]
Flag = Annotated[bool, Check(strict=True)]
Page = Annotated[int, whole(ge=1, le=500)]  # how many at once
Place = Annotated[int, whole(ge=1, lt=2**63)]  # a row's number: no store has larger ones
Moment = Annotated[datetime, Check(before=_written_out, tz_constraint="aware")]


# -- methods

Scope = tuple[str, ...] | None  # any of them will do; None: any principal may
CHAT: Scope = ("chat",)
READS: Scope = ("chat", "read")  # with `chat` only what is one's own
READ: Scope = ("read",)
ADMIN: Scope = ("admin",)


@dataclass(frozen=True, slots=True)
class Verb:
    """A method as a command of the command line: `session list` is `session.list`, unless it has another `name`. The
    parameters in `takes` are given in that order, without a name; all others are options. The first lists of the result
    are shown as tables, each with its fields in `columns`, where `|` parts them; `empty` is said if there are no rows. `holds`
    names the field without which the command fails, and `json` the one field that --json prints. With `watch_s` there is an
    option that shows it again so often."""

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
    """A method of JSON-RPC. `http` is the address where `GET` does the same: its parameters are in the query, the
    first one in the path if there is a place for it. `errors` are the statuses of HTTP with which it may be refused
    besides those of every method. `all_agents`: a token that reaches some agents only may not call it."""

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
        """A sentence for users."""
        return (self.params.__doc__ or "").partition("\n")[0]


def tagged(union: Any, tag: str = "type") -> Any:
    """A union whose members are told apart by a constant field."""
    return Annotated[union, _Tagged(tag)]


class _Tagged:
    def __init__(self, tag: str) -> None:
        self._tag = tag

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Json:
        kinds = handler(core)["anyOf"]
        told = {
            handler.resolve_ref_schema(kind)["properties"][self._tag]["const"]: kind["$ref"]
            for kind in kinds
        }
        return {"oneOf": kinds, "discriminator": {"propertyName": self._tag, "mapping": told}}
