"""How a command ends: exit codes that scripts can rely on, one sentence on stderr, no traceback; with
--json the failure is JSON on stdout."""

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import click

from gateway.domain.errors import Busy, DataDirInUse, GatewayError

FAILED, USAGE, UNREACHABLE, BUSY, NOT_ALLOWED, BAD_CONFIG = 1, 2, 69, 75, 77, 78
BUSY_CODES = frozenset({"address_in_use"})
NO_FACTS: Mapping[str, object] = MappingProxyType({})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Unreachable(GatewayError):
    """No gateway runs here, or it does not answer."""

    code = "unreachable"


class NotAllowed(GatewayError):
    code = "not_allowed"


class Interrupted(GatewayError):
    code = "interrupted"


class Refused(GatewayError):
    """The gateway's own words, with what it says for programs."""

    def __init__(self, message: str, facts: Mapping[str, object]) -> None:
        super().__init__(message)
        self.code, self.facts = str(facts.get("type", GatewayError.code)), facts


@contextmanager
def ending_well(*, debug: bool, as_json: bool = False) -> Iterator[None]:
    """Turns what a command raises into its exit code and one sentence, or JSON."""
    try:
        yield
    except BrokenPipeError:
        # Whoever read our output has enough; Python must not complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except click.ClickException as error:
        _end_of_click(error, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        _end(Interrupted("interrupted"), as_json=as_json)
    except (Exception, BaseExceptionGroup) as error:
        known = _known(error)
        if known is None or debug:  # a defect is not hidden
            if as_json:
                _show(failure(known.code if known else GatewayError.code, str(error)))
            raise
        _end(known, as_json=as_json)


def _known(error: BaseException) -> GatewayError | None:
    """What can be said in a sentence; None for a defect."""
    match error:
        case GatewayError():
            return error
        case BaseExceptionGroup():
            known = error.subgroup(GatewayError)
            return None if known is None else _first(known)
        case OSError() if error.errno in _NO_ROOM:
            return GatewayError(f"the result cannot be written: {error.strerror}")
    return None


def _first(group: BaseExceptionGroup[GatewayError]) -> GatewayError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GatewayError)
    return error


def _end(error: GatewayError, *, as_json: bool) -> None:
    if as_json:
        facts = error.facts if isinstance(error, Refused) else {}
        _show(failure(error.code, str(error), facts))
    else:
        click.echo(f"exogate: {error}", err=True, color=True)
    sys.exit(exit_code(error))


def _end_of_click(error: click.ClickException, *, as_json: bool) -> None:
    if as_json:
        _show(failure("usage" if error.exit_code == USAGE else "failed", error.format_message()))
    else:
        with click.Context(click.Command("exogate"), color=True):  # takes nothing out of the text
            error.show()
    sys.exit(error.exit_code)


def _show(failed: Mapping[str, object]) -> None:
    click.echo(json.dumps(failed, ensure_ascii=False), color=True)


def failure(code: str, message: str, facts: Mapping[str, object] = NO_FACTS) -> dict[str, Any]:
    """What --json shows of a verb that failed, shaped like an error of the gateway's HTTP API."""
    return {"ok": False, "error": {**facts, "type": code, "code": code, "message": message}}


def exit_code(error: GatewayError) -> int:
    if error.code == "config_error":
        return BAD_CONFIG
    if isinstance(error, Unreachable):
        return UNREACHABLE
    if isinstance(error, Busy | DataDirInUse) or error.code in BUSY_CODES:
        return BUSY
    if isinstance(error, NotAllowed):
        return NOT_ALLOWED
    return FAILED
