"""The command line's only writer: whatever goes to stdout or stderr of the process passes it."""

import codecs
import io
import json
import sys
from typing import IO, Any, TextIO

import click

from gateway.config.environment import NO_COLOR, read_environment, value_of
from gateway.host.terminal import visible

ESCAPED = "exogate.escaped"  # what an encoding lacks is written as JSON escapes it


class Terminal(io.TextIOWrapper):
    """A stream of the process on which no text can steer the terminal."""

    def write(self, text: str, /) -> int:
        super().write(visible(text))
        return len(text)

    def write_styled(self, text: str) -> None:
        """A text whose escape sequences are the command line's own."""
        super().write(text)


def guard_streams() -> None:
    """From here on nothing reaches stdout or stderr but through a Terminal."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    buffer: IO[bytes] | None = getattr(stream, "buffer", None)
    if buffer is None:  # closed before the start, or no stream of the process
        return stream
    stream.flush()
    codecs.register_error(ESCAPED, _escaped)
    # An ASCII locale is a missing one, as for click.
    encoding = stream.encoding if stream.encoding.lower() not in {"ascii", "us-ascii"} else "utf-8"
    return Terminal(
        buffer,
        encoding=encoding,
        errors=ESCAPED,
        line_buffering=getattr(stream, "line_buffering", False),
    )


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def tell_styled(text: str, **style: Any) -> None:  # the keywords of click.style
    """Others' text in a colour of ours, where somebody sees it."""
    stream, harmless = sys.stdout, visible(text)
    is_plain = not stream.isatty() or value_of(read_environment(), NO_COLOR) is not None
    if is_plain or not isinstance(stream, Terminal):
        click.echo(harmless)
        return
    stream.write_styled(f"{click.style(harmless, **style)}\n")
    stream.flush()
