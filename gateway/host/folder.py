"""The host function `folder`: reads the texts below a directory that the operator configures, in batches."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from anyio import to_thread

from gateway.codec import decode, encode
from gateway.domain.errors import Denied
from gateway.domain.plugins import PluginDef

BATCH_BYTES = 256 * 1024
LARGEST_FILE = 512 * 1024
_FORM = 'send {"op": "next", "path": "prefix" or null, "cursor": the last one or null}'


class Folder:
    """The host function. It skips hidden files, links, large files and binary files."""

    async def __call__(self, text: str, plugin: PluginDef) -> str:
        root = plugin.config.get("folder")
        if not isinstance(root, str) or not Path(root).is_absolute():
            raise Denied("the operator must set config.folder to an absolute path")
        try:
            request = decode(text)
        except ValueError as error:
            raise Denied(_FORM) from error
        if not isinstance(request, dict) or request.get("op") != "next":
            raise Denied(_FORM)
        prefix, cursor = request.get("path") or "", request.get("cursor") or ""
        if {type(prefix), type(cursor)} != {str}:
            raise Denied(_FORM)
        read = partial(_batch, root, prefix, tuple(filter(None, cursor.split("/"))))
        files, last = await to_thread.run_sync(read)
        batch = [{"path": path, "text": content} for path, content in files]
        return encode({"files": batch, "cursor": last}).decode()


def _batch(
    root: str, prefix: str, after: tuple[str, ...]
) -> tuple[list[tuple[str, str]], str | None]:
    """Returns the next files after `after`, and the name of the last one; None if no files are left."""
    files: list[tuple[str, str]] = []
    room = BATCH_BYTES
    for parts, path in _walk(root, after):
        name = "/".join(parts)
        if not name.startswith(prefix):
            continue
        if (content := _text(path)) is None:
            continue
        files.append((name, content))
        room -= len(content) + len(name)
        if room <= 0:
            return files, name
    return files, None


def _walk(folder: str, after: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields every file below, depth first in the order of names, without following links."""
    first = after[0] if after else ""
    for entry in _entries(folder):
        if entry.name < first:
            continue
        inside = after[1:] if entry.name == first else ()
        if entry.is_dir(follow_symlinks=False):
            below = _walk(entry.path, inside)
            yield from (((entry.name, *parts), path) for parts, path in below)
        elif entry.is_file(follow_symlinks=False) and after != (entry.name,):
            yield (entry.name,), entry.path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            shown = [entry for entry in found if not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(shown, key=lambda entry: entry.name)


def _text(path: str) -> str | None:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        raw = file.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE or b"\0" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
