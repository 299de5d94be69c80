"""Types become schemas: optional fields, references, and two types of one name."""

from gateway.api.declarations import Params, Value
from gateway.web.documents import schemas_of


class Asked(Params):
    limit: int = 50


class Told(Value):
    """A word for it."""

    name: str
    more: bool | None = None


class Elsewhere:
    class Told(Value):
        other: int


def test_only_what_may_be_absent_is_not_required() -> None:
    schemas = schemas_of(outputs=[Told], inputs=[Asked])

    assert schemas.components["Told"]["required"] == ["name"]
    assert "required" not in schemas.components["Asked"]
    assert schemas.components["Asked"]["additionalProperties"] is False


def test_a_type_is_described_once_and_referred_to_wherever_it_stands() -> None:
    schemas = schemas_of(outputs=[Told, list[Told]])

    place = {"$ref": "#/components/schemas/Told"}
    assert schemas.output(Told) == place
    assert schemas.output(list[Told]) == {"type": "array", "items": place}
    assert schemas.components["Told"]["description"] == "A word for it."


def test_two_types_of_one_name_keep_apart() -> None:
    schemas = schemas_of(outputs=[Told, Elsewhere.Told])

    assert len(schemas.components) == 2
    assert schemas.output(Told) != schemas.output(Elsewhere.Told)
