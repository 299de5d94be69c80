"""What a key of the blackboard may hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.control.words import meant, short

# Of each simple type: what it is in Python, and the default of a key that is declared without one.
_SIMPLE: Mapping[str, tuple[type | tuple[type, ...], object]] = {
    "bool": (bool, False),
    "string": (str, ""),
    "int": (int, 0),
    "float": ((int, float), 0.0),
    "list": ((list, tuple), []),
    "map": (Mapping, {}),
    "any": (object, None),
}
_WRAPPING = ("list", "option")


class BadType(ValueError):
    """Text that names no type; says why."""


@dataclass(frozen=True, slots=True)
class KeyType:
    name: str
    inner: "KeyType | None" = None  # of a list or an option
    model: type = object

    def __str__(self) -> str:
        return f"({self.name} {self.inner})" if self.inner else self.name

    @property
    def natural(self) -> object:
        """The default of a key that is declared without one."""
        return _SIMPLE[self.name][1] if self.name in _SIMPLE else None

    def accepts(self, value: object) -> bool:
        inner = self.inner
        if self.name == "option":
            return value is None or inner is None or inner.accepts(value)
        python = _SIMPLE[self.name][0] if self.name in _SIMPLE else self.model
        if not isinstance(value, python) or (type(value) is bool and self.name in {"int", "float"}):
            return False
        return inner is None or all(inner.accepts(one) for one in value)  # type: ignore[attr-defined]  # a list

    def may_hold(self, other: "KeyType") -> bool:
        """Whether a value of the other type can be right here; what is checked before a run."""
        ours, theirs = (
            kind.inner or ANY if kind.name == "option" else kind for kind in (self, other)
        )
        if "any" in {ours.name, theirs.name} or (ours.name, theirs.name) == ("float", "int"):
            return True
        if ours.name != theirs.name:
            return False
        return not (ours.inner and theirs.inner) or ours.inner.may_hold(theirs.inner)


ANY = KeyType("any")
UNKNOWN = KeyType("option", ANY)  # what nil says of a key


def is_type(word: object) -> bool:
    return word in _SIMPLE or word == "option" or str(word).startswith("model:")


def read_type(text: str, models: Mapping[str, type] | None = None) -> KeyType:
    """`(list string)`, `model:Name` and so on; any model is let through if `models` is None."""
    *outer, word = text.replace("(", " ").replace(")", " ").split() or [""]
    found = UNKNOWN if word == "option" else _named(word, models)
    for name in reversed(outer):
        if name not in _WRAPPING:
            raise BadType(f'"{short(name)}" takes no other type; only list and option do')
        found = KeyType(name, found)
    return found


def _named(word: str, models: Mapping[str, type] | None) -> KeyType:
    name = word.removeprefix("model:")
    if name != word and (models is None or name in models):
        return KeyType(word, None, (models or {}).get(name, object))
    if word in _SIMPLE:
        return KeyType(word)
    names = (*_SIMPLE, "option", *(f"model:{model}" for model in models or ("NAME",)))
    raise BadType(f'unknown type "{short(word)}"{meant(word, names)}; types: {", ".join(names)}')


def type_of(value: object) -> KeyType:
    """The type of a key that is declared by its default."""
    if value is None:
        return UNKNOWN
    return next(kind for kind in map(KeyType, _SIMPLE) if kind.accepts(value))
