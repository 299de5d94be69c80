"""Text that cannot steer a terminal, whoever wrote it: a user, a model, a plugin, a platform."""

import re

# C0 without tab and newline, DEL, C1, the marks, embeddings, overrides and isolates of bidirectional
# text, line and paragraph separators, interlinear annotations, and lone surrogates.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Each such character as its escape: `\x1b`, and `\u009b` beyond ASCII.

    JSON stays JSON with the same value: its C0 characters are escaped already, and the others get
    the escapes that JSON has.
    """
    return _STEERING.sub(_escape, text)


def one_line(text: str) -> str:
    """The same for a text inside a row: newlines and tabs become visible too."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"
