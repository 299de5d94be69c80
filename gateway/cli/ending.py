"""How a command ends: exit codes that scripts can rely on, one sentence on stderr, no traceback."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from gateway.domain.errors import Busy, DataDirInUse, GatewayError
from gateway.domain.mcp import McpNotInstalled

FAILED, UNREACHABLE, BUSY, NOT_ALLOWED, BAD_CONFIG = 1, 69, 75, 77, 78
BUSY_CODES = frozenset({"address_in_use"})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Unreachable(GatewayError):
    """No gateway runs here, or it does not answer."""

    code = "unreachable"


class NotAllowed(GatewayError):
    code = "not_allowed"


@contextmanager
def ending_well(*, debug: bool) -> Iterator[None]:
    """Turns what a command raises into its exit code and one sentence."""
    try:
        yield
    except BaseExceptionGroup as group:
        known = group.subgroup(GatewayError)
        if known is None or debug:
            raise
        _end(_first(known))
    except GatewayError as error:
        if debug:
            raise
        _end(error)
    except BrokenPipeError:
        # Whoever read our output has enough; Python must not complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except OSError as error:
        if debug or error.errno not in _NO_ROOM:
            raise
        _end(GatewayError(f"the result cannot be written: {error.strerror}"))


def _first(group: BaseExceptionGroup[GatewayError]) -> GatewayError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GatewayError)
    return error


def _end(error: GatewayError) -> None:
    click.echo(f"exogate: {error}", err=True)
    sys.exit(exit_code(error))


def exit_code(error: GatewayError) -> int:
    if error.code == "config_error":
        return BAD_CONFIG
    if isinstance(error, Unreachable):
        return UNREACHABLE
    if isinstance(error, Busy | DataDirInUse) or error.code in BUSY_CODES:
        return BUSY
    if isinstance(error, NotAllowed):
        return NOT_ALLOWED
    if isinstance(error, McpNotInstalled):
        return BAD_CONFIG
    return FAILED
