"""JSON for every room: compact bytes of plain values, and values of text or bytes.

These are functions of pydantic-core: chunks and journals are encoded with every message, and the
standard library takes several times as long. No room but `domain` and `config` needs another way.
"""

from collections.abc import Callable
from functools import partial

from pydantic_core import from_json, to_json

encode: Callable[[object], bytes] = to_json  # raises ValueError for what has no form in JSON
decode: Callable[[bytes | str], object] = from_json  # raises ValueError
# Without numbers like NaN: a guest's parser, or a provider's, refuses them.
decode_strictly: Callable[[bytes | str], object] = partial(from_json, allow_inf_nan=False)
