"""Kinds of text that are told in many places."""

from typing import Annotated

from pydantic import Field

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]  # UTC, with Z
