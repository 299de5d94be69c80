"""Times and numbers of callers are read as JSON Schema defines them."""

from datetime import UTC, datetime
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.api.declarations import Moment, Place, whole

TIME: TypeAdapter[datetime] = TypeAdapter(Moment)
PLACE: TypeAdapter[int] = TypeAdapter(Place)
COUNT: TypeAdapter[int] = TypeAdapter(Annotated[int, whole(ge=1)])


@pytest.mark.parametrize(
    "text", ["2026-01-31T12:00:00Z", "2026-01-31t13:00:00.000+01:00", "2026-01-31 12:00:00z"]
)
def test_a_time_is_written_out(text: str) -> None:
    assert TIME.validate_python(text) == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "value", ["0.5", "1769860800", 1769860800, "2026-01-31", "2026-01-31T12:00:00", "12:00Z", ""]
)
def test_a_number_a_day_and_a_time_of_nowhere_are_no_times(value: object) -> None:
    with pytest.raises(ValidationError, match="2026-01-31T12:00:00Z"):
        TIME.validate_python(value)


def test_no_place_is_beyond_what_a_store_can_hold() -> None:
    assert PLACE.validate_python(2**63 - 1) == 2**63 - 1
    for beyond in (0, 2**63, 446981016830789943296):
        with pytest.raises(ValidationError):
            PLACE.validate_python(beyond)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert COUNT.validate_python(5.0) == 5
    assert COUNT.json_schema() == {"type": "integer", "minimum": 1}
    for other in (5.5, "5", True, 0.0, float("inf")):
        with pytest.raises(ValidationError):
            COUNT.validate_python(other)
