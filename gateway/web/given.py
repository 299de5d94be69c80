"""Times and numbers as callers write them."""

import re
from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, Field

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _written_out(value: object) -> object:
    """Else numbers would be taken for seconds since 1970, or for milliseconds if they are large."""
    if isinstance(value, datetime) or (isinstance(value, str) and _RFC_3339.fullmatch(value)):
        return value
    raise ValueError("has to be a time like 2026-01-31T12:00:00Z, with its offset")


def _as_whole(value: object) -> object:
    """To JSON 5.0 is the same number as 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_as_whole)
Whole = Annotated[int, WHOLE]
# A row's number: no store has larger ones, or takes them.
Place = Annotated[int, Field(ge=1, lt=2**63), WHOLE]
Moment = Annotated[AwareDatetime, BeforeValidator(_written_out)]
