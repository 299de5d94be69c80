"""From types to the JSON Schemas of a document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

Json = dict[str, Any]

PLACE = "#/components/schemas/{model}"
_READ: JsonSchemaMode = "validation"  # what has a default may be absent
_TOLD: JsonSchemaMode = "serialization"


@dataclass(frozen=True, slots=True)
class Schemas:
    """`components` belong under `components.schemas`; the methods say what to write where a type
    stands."""

    components: Json
    _places: Mapping[tuple[object, JsonSchemaMode], Json]

    def told(self, type_: object) -> Json:
        return self._places[type_, _TOLD]

    def read(self, type_: object) -> Json:
        return self._places[type_, _READ]


class _Plain(GenerateJsonSchema):
    """A field's title would only be its name once more."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False


def schemas_of(*, told: Sequence[Any] = (), read: Sequence[Any] = ()) -> Schemas:
    """Of all types at once, so that two of one name get two names. Takes a while."""
    uses = dict.fromkeys([*((one, _TOLD) for one in told), *((one, _READ) for one in read)])
    wanted = [((one, mode), mode, TypeAdapter[Any](one)) for one, mode in uses]
    found, rest = TypeAdapter.json_schemas(wanted, ref_template=PLACE, schema_generator=_Plain)
    return Schemas(rest.get("$defs", {}), {key: schema for (key, _), schema in found.items()})
