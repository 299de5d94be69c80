"""A document without what is wrong in it, so that the rest can still be checked."""

import copy
from collections.abc import Iterable, Mapping

from gateway.config.checking import check
from gateway.config.keys import model_at
from gateway.config.problems import MISSING, Finding, KeyPath
from gateway.config.schema import ConfigFile

PLACEHOLDER = "placeholder"  # for a required text: its findings are not reported again
_ROUNDS = 4


def mended(content: Mapping[str, object], findings: Iterable[Finding]) -> ConfigFile | None:
    """The sections that remain once every finding's value is gone; None if too little is right."""
    try:
        rest = copy.deepcopy(dict(content))
    except RecursionError:
        return None
    todo: Iterable[Finding] = findings
    for _ in range(_ROUNDS):
        for finding in todo:
            _mend(rest, finding)
        checked = check(rest)
        if checked.sections is not None:
            return checked.sections
        todo = checked.findings
    return None


def _mend(rest: dict[str, object], finding: Finding) -> None:
    """Removes the innermost key on the path that names the fault."""
    here: object = rest
    owner, key, path = rest, finding.path[0], finding.path[:0]
    for depth, part in enumerate(finding.path):
        if isinstance(here, dict):
            owner, key, path = here, part, finding.path[:depth]
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            break
    if finding.code != MISSING or key in owner:
        owner.pop(str(key), None)
    if _is_required(path, str(key)):
        owner[str(key)] = PLACEHOLDER


def _is_required(path: KeyPath, key: str) -> bool:
    model = model_at(path)
    field = model.model_fields.get(key) if model else None
    return field is not None and field.is_required()
