"""Shared parts of all commands: global options, guarded output streams, and exit codes.

Scripts rely on the exit codes. A failure prints one sentence on stderr without a traceback; with --json it prints JSON
on stdout. `exogate --help` imports this module, so it imports nothing heavy.
"""

import codecs
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TextIO

import click

from gateway.config.problems import ConfigInvalid, ConfigProblem
from gateway.domain.errors import Busy, DataDirInUse, GatewayError
from gateway.domain.text import visible
from gateway.host.process import listener_on

FAILED, USAGE, UNREACHABLE, BUSY, NOT_ALLOWED, BAD_CONFIG = 1, 2, 69, 75, 77, 78
BUSY_CODES = frozenset({"address_in_use", "store_in_use"})
NO_FACTS: Mapping[str, object] = MappingProxyType({})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


@dataclass(frozen=True, slots=True)
class CliContext:
    """The global options of a command line."""

    config_path: Path | None = None
    data_dir: Path | None = None
    json: bool = False
    debug: bool = False

    def print_json(self, result: object) -> None:
        click.echo(json.dumps(result, ensure_ascii=False))

    def print_result(self, result: object, *lines: str) -> None:
        """Prints the result as JSON with --json, else prints `lines`."""
        if self.json:
            self.print_json(result)
        for line in () if self.json else lines:
            click.echo(line)


class ParsedType(click.ParamType[Any]):
    """A click type whose values `parse` reads. Its ValueError or GatewayError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name, self._parse = name, parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        try:
            return self._parse(str(value))
        except (ValueError, GatewayError) as error:
            self.fail(str(error), param, ctx)


JsonObject = Mapping[str, object]


def json_object(text: str) -> JsonObject:
    """Parses a JSON object. Raises ValueError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError('write a JSON object: {"key": value}')
    return found


JSON = ParsedType("JSON", json_object)

# Global options may stand anywhere in the command line.
FLAGS = frozenset({"--json", "--debug"})
VALUED = frozenset({"--config", "-c", "--data-dir"})  # the next word is the value
TEXT_FOLLOWS = frozenset(
    {"-m", "--message"}
)  # the next word is text, even if it looks like an option


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the global options, and all other words."""
    front: list[str] = []
    rest = list(words)
    place = 0
    while place < len(rest) and rest[place] != "--":
        word = rest[place]
        if word in FLAGS or _has_inline_value(word):
            front.append(rest.pop(place))
        elif word in VALUED and place + 1 < len(rest):
            front += [rest.pop(place), rest.pop(place)]
        else:
            place += 2 if word in TEXT_FOLLOWS else 1
    return front, rest


def _has_inline_value(word: str) -> bool:
    if word.startswith("-c") and not word.startswith("--"):
        return len(word) > len("-c")
    name, is_given, _ = word.partition("=")
    return bool(is_given) and name in VALUED


# -- streams

ESCAPED = "exogate.escaped"  # the error handler that writes missing characters as JSON escapes


class Terminal(io.TextIOWrapper):
    """An output stream that makes terminal control characters visible instead of sending them."""

    def write(self, text: str, /) -> int:
        super().write(visible(text))
        return len(text)

    def write_styled(self, text: str) -> None:
        """Writes text whose escape sequences come from the command line itself."""
        super().write(text)


def guard_streams() -> None:
    """Replaces stdout and stderr by Terminals."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    buffer: IO[bytes] | None = getattr(stream, "buffer", None)
    if buffer is None:  # the stream is closed, or is not one of the process
        return stream
    stream.flush()
    codecs.register_error(ESCAPED, _escaped)
    # Like click, treat an ASCII locale as a missing one.
    encoding = stream.encoding if stream.encoding.lower() not in {"ascii", "us-ascii"} else "utf-8"
    is_buffered = getattr(stream, "line_buffering", False)
    return Terminal(buffer, encoding=encoding, errors=ESCAPED, line_buffering=is_buffered)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


# -- ends


class Unreachable(GatewayError):
    """No gateway runs on the data directory, or it does not answer."""

    code = "unreachable"


class NotAllowed(GatewayError):
    code = "not_allowed"


class Interrupted(GatewayError):
    code = "interrupted"


class CommandRefused(GatewayError):
    """An error that the gateway returned; `facts` is its data for programs."""

    def __init__(self, message: str, facts: Mapping[str, object]) -> None:
        super().__init__(message)
        self.code, self.facts = str(facts.get("type", GatewayError.code)), facts


@contextmanager
def report_errors(*, debug: bool, as_json: bool = False) -> Iterator[None]:
    """Turns an exception of a command into its exit code and one sentence, or JSON."""
    try:
        yield
    except BrokenPipeError:
        # The reader closed the pipe: send the rest to /dev/null, so that the flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except click.ClickException as error:
        _exit_with_click(error, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        _exit_with(Interrupted("interrupted"), as_json=as_json)
    except (Exception, BaseExceptionGroup) as error:
        known = _expected_error(error)
        if known is None or debug:  # a defect shows its traceback
            if as_json:
                _show(failure(known.code if known else GatewayError.code, str(error)))
            raise
        _exit_with(known, as_json=as_json)


def _expected_error(error: BaseException) -> GatewayError | None:
    """Returns the error to print, of a group the first one; None for a defect."""
    match error:
        case GatewayError():
            return error
        case BaseExceptionGroup():
            return next(filter(None, map(_expected_error, error.exceptions)), None)
        case PermissionError() if where := error.filename:
            return NotAllowed(f"this user has no access to {where}: run the command as its owner")
        case OSError() if error.errno in _NO_ROOM:
            return GatewayError(f"the result cannot be written: {error.strerror}")
    return None


def _exit_with(error: GatewayError, *, as_json: bool) -> None:
    message = str(error)
    if pid := listener_on(getattr(error, "port", 0)):
        message = f"{message}; process {pid} listens there"
    if as_json:
        facts = error.facts if isinstance(error, CommandRefused) else {}
        failed = failure(error.code, message, facts)
        _show(failed | problems_of(error) if isinstance(error, ConfigInvalid) else failed)
    elif isinstance(error, ConfigInvalid):
        click.echo(error.render(), err=True, color=True)
    else:
        click.echo(f"exogate: {message}", err=True, color=True)
    sys.exit(exit_code(error))


def _exit_with_click(error: click.ClickException, *, as_json: bool) -> None:
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdecimal():
        text = f'{error.message} Write a negative number after "--": -- {error.option_name}'
        error = click.UsageError(text, error.ctx)
    if as_json:
        _show(failure("usage" if error.exit_code == USAGE else "failed", error.format_message()))
    else:
        with click.Context(click.Command("exogate"), color=True):  # click strips nothing
            error.show()
    sys.exit(error.exit_code)


def _show(failed: Mapping[str, object]) -> None:
    click.echo(json.dumps(failed, ensure_ascii=False), color=True)


def failure(code: str, message: str, facts: Mapping[str, object] = NO_FACTS) -> dict[str, Any]:
    """Returns the --json result of a failed verb, shaped like an error of the HTTP API."""
    return {"ok": False, "error": {**facts, "type": code, "code": code, "message": message}}


def problems_of(error: ConfigInvalid) -> dict[str, object]:
    """Returns all problems of a configuration as JSON fields."""
    return {"problems": list(map(problem_as_json, error.problems)), "left_out": error.left_out}


def problem_as_json(problem: ConfigProblem) -> dict[str, object]:
    names = ("code", "source", "key", "message", "fix")
    place = {"line": problem.line or None, "column": problem.column or None}
    return {name: getattr(problem, name) for name in names} | place


def exit_code(error: GatewayError) -> int:
    if error.code == "config_error":
        return BAD_CONFIG
    if isinstance(error, Unreachable):
        return UNREACHABLE
    if isinstance(error, Busy | DataDirInUse) or error.code in BUSY_CODES:
        return BUSY
    return NOT_ALLOWED if isinstance(error, NotAllowed) else FAILED
