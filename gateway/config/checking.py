"""A document against the schema: sections, or everything that is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from gateway.config.problems import Finding
from gateway.config.schema import ConfigFile

MOST = 1_000  # findings: whoever has more wrote no configuration


@dataclass(frozen=True, slots=True)
class Checked:
    """The document as sections (None if it is not), and everything that is wrong with it."""

    sections: ConfigFile | None
    findings: tuple[Finding, ...] = ()
    left_out: int = 0


def check(content: Mapping[str, object]) -> Checked:
    try:
        return Checked(ConfigFile.model_validate(dict(content)))
    except ValidationError as error:
        # a start with a valid file is faster without it
        from gateway.config.wording import findings_of  # noqa: PLC0415

        findings = tuple(findings_of(error.errors(include_url=False)[:MOST], content))
        return Checked(None, findings, max(0, error.error_count() - MOST))
