"""Files beside the store: texts that people edit while we run, the operator's key, what ships with us."""

import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from anyio import to_thread

import gateway
from gateway.domain.errors import SoulUnreadable
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

MOST_BYTES = 256 * 1024
LOOK_EVERY_S = 1.0


class FileTexts:
    """Looks at its files once a second: a handful of `stat` calls cost less than a watcher's thread,
    and work on every file system."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def read(self, path: str) -> str:
        """Raises SoulUnreadable with a sentence that says what and where."""
        return await to_thread.run_sync(_read, path)

    async def watch(self, paths: Sequence[str], changed: Callable[[str], Awaitable[None]]) -> None:
        """Calls `changed` for each file that has changed; runs until cancelled."""
        before = await to_thread.run_sync(_stamps, paths)
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            now = await to_thread.run_sync(_stamps, paths)
            for path in paths:
                if now[path] != before[path]:
                    await changed(path)
            before = now


async def watch_folder(
    folder: Path, pattern: str, clock: Clock, changed: Callable[[], Awaitable[None]]
) -> None:
    """Calls `changed` now, and whenever a file there has changed; runs until cancelled."""
    before: object = None
    while True:
        now = await to_thread.run_sync(lambda: _stamps([*map(str, folder.glob(pattern))]))
        if now != before:
            await changed()
        before = now
        await clock.sleep(LOOK_EVERY_S)


def _stamps(paths: Sequence[str]) -> dict[str, object]:
    """A stamp differs when its file changes, also when an editor replaces it; None: there is none."""
    stamps = dict[str, object].fromkeys(paths)
    for path in paths:
        with suppress(OSError):
            found = Path(path).stat()
            stamps[path] = found.st_ino, found.st_mtime_ns, found.st_size
    return stamps


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise SoulUnreadable(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MOST_BYTES:
        raise SoulUnreadable(f"{path} is larger than {MOST_BYTES // 1024} KiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SoulUnreadable(f"{path} is not UTF-8 (byte {error.start})") from error
    if "\0" in text:
        raise SoulUnreadable(f"{path} contains a NUL character")
    if not text.strip():
        raise SoulUnreadable(f"{path} is empty")
    return text


KEY = "operator.key"  # with which our command line authenticates at a running gateway


def make_key(data_dir: Path) -> str:
    """Writes a new key to a file that only its owner can read. Keys of earlier starts become invalid."""
    key = secrets.token_urlsafe(32)
    fresh = data_dir / f"{KEY}.new"
    fresh.unlink(missing_ok=True)
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        file.write(key)
    fresh.replace(data_dir / KEY)
    return key


def read_key(data_dir: Path) -> str | None:
    """The key of the running gateway; None if this user cannot read it."""
    try:
        return (data_dir / KEY).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def shipped_folder(name: str) -> Path:
    """In the package once installed; beside it in a checkout."""
    package = Path(gateway.__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name
