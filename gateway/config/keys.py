"""Which keys the schema has, and where."""

import typing
from collections.abc import Iterator

from pydantic import BaseModel

from gateway.config.problems import KeyPath
from gateway.config.schema import AgentSection, ConfigFile, FallbackSection, NamedAgentSection

Model = type[BaseModel]

for _model in (AgentSection, NamedAgentSection, FallbackSection):
    _model.model_rebuild()  # their annotations name each other


def model_at(path: KeyPath) -> Model | None:
    """The section that a path leads to; names of providers and list positions lead on."""
    model: Model | None = ConfigFile
    for part in path:
        if model is None:
            return None
        if isinstance(part, int):
            continue
        if part in model.model_fields:
            model, named = _section(model.model_fields[part].annotation)
            if named:
                model = _Named.of(model)
        elif issubclass(model, _Named):
            model = model.inner
        else:
            return None
    return model


class _Named(BaseModel):
    """A table whose keys are names: `inner` is what each of them holds."""

    inner: typing.ClassVar[Model | None] = None

    @classmethod
    def of(cls, inner: Model | None) -> "type[_Named]":
        return type("_NamedSection", (cls,), {"inner": inner, "__module__": __name__})


def keys_at(path: KeyPath) -> tuple[str, ...]:
    model = model_at(path)
    return tuple(model.model_fields) if model is not None else ()


def sections_with(key: str) -> tuple[str, ...]:
    """Sections at the top that have this key: it may only stand at the wrong place."""
    found = []
    for name, field in ConfigFile.model_fields.items():
        section, named = _section(field.annotation)
        if section is not None and not named and key in section.model_fields:
            found.append(f"[[{name}]]" if _is_list(field.annotation) else f"[{name}]")
    return tuple(found)


def every_key() -> Iterator[tuple[str, object, str]]:
    """Each key once, as documented: (dotted path, default or ..., description).

    `agents` has the keys of `agent`, and a fallback's fallback those of a fallback.
    """
    yield from _walk(ConfigFile, "")


def _walk(model: Model, above: str) -> Iterator[tuple[str, object, str]]:
    for name, field in model.model_fields.items():
        path = f"{above}{name}"
        section, named = _section(field.annotation)
        if section is None:
            yield path, field.get_default(), field.description or ""
        elif section is FallbackSection and model is FallbackSection:
            continue
        else:
            marks = ".NAME." if named else "[]." if _is_list(field.annotation) else "."
            yield from _walk(section, f"{path}{marks}")


def _is_list(annotation: object) -> bool:
    return typing.get_origin(annotation) is list


def _section(annotation: object) -> tuple[Model | None, bool]:
    """The model inside an annotation, and whether it is held by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in typing.get_args(annotation):
        found, _ = _section(inner)
        if found is not None:
            return found, typing.get_origin(annotation) is dict
    return None, False
