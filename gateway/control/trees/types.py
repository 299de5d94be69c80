"""What a key of the blackboard may hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.control.words import meant, short

TypeName = Literal["string", "int", "float", "bool", "any", "list", "map", "option", "model"]
SIMPLE: tuple[TypeName, ...] = ("string", "int", "float", "bool", "any", "list", "map")
NATURAL: Mapping[TypeName, object] = {
    "string": "",
    "int": 0,
    "float": 0.0,
    "bool": False,
    "list": [],
    "map": {},
}
_PYTHON: Mapping[TypeName, type | tuple[type, ...]] = {
    "string": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "map": Mapping,
    "any": object,
}


class BadType(ValueError):
    """Text that names no type; says why."""


@dataclass(frozen=True, slots=True)
class KeyType:
    name: TypeName
    inner: "KeyType | None" = None  # of a list or an option
    model: type | None = None
    model_name: str = ""

    def __str__(self) -> str:
        if self.name == "model":
            return f"model:{self.model_name}"
        return f"({self.name} {self.inner})" if self.inner else self.name

    @property
    def natural(self) -> object:
        """The default of a key that is declared without one."""
        return NATURAL.get(self.name)

    def accepts(self, value: object) -> bool:
        if self.name == "option":
            return value is None or self.inner is None or self.inner.accepts(value)
        if self.name == "model":
            return self.model is None or isinstance(value, self.model)
        if self.name == "list":
            return isinstance(value, list | tuple) and self._accepts_all(value)
        wanted = _PYTHON[self.name]
        is_odd_bool = isinstance(value, bool) and self.name in {"int", "float"}
        return isinstance(value, wanted) and not is_odd_bool

    def _accepts_all(self, values: list[object] | tuple[object, ...]) -> bool:
        inner = self.inner
        return inner is None or all(inner.accepts(value) for value in values)

    def may_hold(self, other: "KeyType") -> bool:
        """Whether a value of the other type can be right here; what is checked before a run."""
        ours, theirs = self._bare(), other._bare()  # noqa: SLF001  # of the same class
        if "any" in {ours.name, theirs.name} or (ours.name, theirs.name) == ("float", "int"):
            return True
        if ours.name != theirs.name or ours.model_name != theirs.model_name:
            return False
        return not (ours.inner and theirs.inner) or ours.inner.may_hold(theirs.inner)

    def _bare(self) -> "KeyType":
        return (self.inner or ANY) if self.name == "option" else self


ANY = KeyType("any")
UNKNOWN = KeyType("option", ANY)  # what nil says of a key


def named_type(word: str, models: Mapping[str, type] | None) -> KeyType:
    """`string`, `model:Name` and so on; any model is let through if `models` is None."""
    if word.startswith("model:"):
        name = word.removeprefix("model:")
        if models is not None and name not in models:
            raise BadType(f'unknown model "{short(name)}"{meant(name, models)}')
        return KeyType("model", None, (models or {}).get(name), name)
    for simple in SIMPLE:
        if word == simple:
            return KeyType(simple)
    names = (*SIMPLE, "option", "model:NAME")
    raise BadType(f'unknown type "{short(word)}"{meant(word, names)}; types: {", ".join(names)}')


def read_type(text: str, models: Mapping[str, type] | None = None) -> KeyType:
    """`(list string)` and so on, as a function declares what it reads and writes."""
    words = text.replace("(", " ").replace(")", " ").split()
    if not words:
        raise BadType("an empty text is no type")
    *outer, word = words
    found = named_type(word, models) if word != "option" else UNKNOWN
    for name in reversed(outer):
        found = wrapped(name, found)
    return found


def wrapped(name: str, inner: KeyType) -> KeyType:
    if name == "list":
        return KeyType("list", inner)
    if name == "option":
        return KeyType("option", inner)
    raise BadType(f'"{short(name)}" takes no other type; only list and option do')


def type_of(value: object) -> KeyType:
    """The type of a key that is declared by its default."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return KeyType("bool")
    names: tuple[tuple[type, TypeName], ...] = (
        (str, "string"),
        (int, "int"),
        (float, "float"),
        (list, "list"),
        (dict, "map"),
    )
    return next((KeyType(name) for kind, name in names if isinstance(value, kind)), ANY)
