"""What both previews of WASI are made of here: a call's clocks, chance, sleep and output.

The monotonic clock begins with the call and needs no grant; wall clock and random bytes need theirs.
"""

import time
from queue import Empty

from gateway.sandbox.calls import current

STDIN, STDOUT, STDERR = 0, 1, 2
RESOLUTION_NS = 1_000_000
MOST_RANDOM_BYTES = 64 * 1024


def elapsed_ns() -> int:
    return int((time.monotonic() - current().began) * 1e9)


def wall_ns() -> int | None:
    """None without the grant."""
    answer, text = current().ask("clock.now")
    return int(text) * 1_000_000 if answer == "ok" else None


def random_bytes(count: int) -> bytes | None:
    """None without the grant, or if so many are not to be had at once."""
    if count > MOST_RANDOM_BYTES:
        return None
    answer, text = current().ask("random.bytes", str(count))
    if answer != "ok":
        current().log("error", text)  # most guests give up here: it says what to grant
        return None
    return bytes.fromhex(text)


def sleep(seconds: float) -> None:
    """No longer than the call may last, and a cancelled call wakes at once. Raises Ended."""
    call = current()
    call.count("sleep")
    try:
        call.answers.get(timeout=max(0.0, min(seconds, call.left_s)))
    except Empty:
        if call.is_over:
            raise call.stop("timeout") from None
        return
    raise call.stop("cancelled")  # nothing was asked, so this is no answer


def say(stream: int, data: bytes) -> None:
    current().write("error" if stream == STDERR else "info", data)
