"""Text files that people edit while we run."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.domain.errors import SoulUnreadable

log = logging.getLogger(__name__)

MOST_BYTES = 256 * 1024


class FileTexts:
    def read(self, path: str) -> str:
        """Raises SoulUnreadable with a sentence that says what and where."""
        file = Path(path)
        try:
            with file.open("rb") as opened:
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

    async def watch(self, paths: Sequence[str], changed: Callable[[str], None]) -> None:
        """Watches the folders, because editors replace files instead of writing them."""
        if not paths:
            return
        from watchfiles import awatch  # noqa: PLC0415  # its start costs more than ours may

        by_file = {Path(path).resolve(): path for path in paths}
        folders = sorted({str(file.parent) for file in by_file})
        async for changes in awatch(*folders, recursive=False, step=50, debounce=200):
            for file in {Path(name).resolve() for _, name in changes}:
                if file in by_file:
                    changed(by_file[file])
