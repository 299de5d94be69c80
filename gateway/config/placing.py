"""Findings with their place in the file: what `ConfigInvalid` carries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.config.document import Document
from gateway.config.masking import Veil, masked_line, secret_spans, veil_over
from gateway.config.positions import locate
from gateway.config.problems import (
    SHOWN,
    UNKNOWN_KEY,
    ConfigInvalid,
    Finding,
    KeyPath,
    Problem,
    dotted,
)
from gateway.config.spans import Positions, Span


@dataclass(frozen=True, slots=True)
class _File:
    """One file with all that is needed to show a line of it."""

    document: Document
    positions: Positions
    hidden: Sequence[Span]
    veil: Veil

    def problem(self, finding: Finding, span: Span) -> Problem:
        line, column = self.positions.line_column(span.start)
        text, caret = masked_line(self.document.source, span.start, self.hidden, self.veil)
        return replace(
            _bare(finding, self.document.name, self.veil),
            line=line,
            column=column,
            text=text,
            caret=caret,
        )


def placed(
    findings: Sequence[Finding],
    document: Document,
    variables: Mapping[KeyPath, str],
    *,
    left_out: int = 0,
) -> ConfigInvalid:
    """`variables`: paths whose values came from the environment, not from the file."""
    veil = veil_over(document.content)
    elsewhere = [
        _bare(finding, source, veil)
        for finding in findings
        if (source := _source(finding, document, variables))
    ]
    inside = [f for f in findings if not _source(f, document, variables)]
    problems = (*elsewhere, *(_in_file(inside, document, veil) if inside else ()))[:SHOWN]
    return ConfigInvalid(problems, left_out=left_out + len(findings) - len(problems))


def _source(finding: Finding, document: Document, variables: Mapping[KeyPath, str]) -> str | None:
    """Where the value came from, if not from the file."""
    variable = finding.variable or variables.get(finding.path)
    return variable or (None if document.path else "configuration")


def _in_file(findings: Sequence[Finding], document: Document, veil: Veil) -> Iterable[Problem]:
    positions = locate(document.source)
    unknown = [finding.path for finding in findings if finding.code == UNKNOWN_KEY]
    file = _File(document, positions, secret_spans(positions, unknown), veil)
    spots = [(positions.span(finding.path, finding.at), finding) for finding in findings]
    spots.sort(key=lambda spot: spot[0].start)
    return [file.problem(finding, span) for span, finding in spots[:SHOWN]]


def _bare(finding: Finding, source: str, veil: Veil) -> Problem:
    key = veil.over(dotted(finding.path))
    message, fix = veil.over(finding.message), veil.over(finding.fix)
    return Problem(finding.code, source, 0, 0, key, message, fix)
