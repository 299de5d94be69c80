"""WebAssembly files become compiled ones: in a limited child process, once for each content."""

import hashlib
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio
from anyio import CancelScope, to_thread
from pydantic import BaseModel, Field, TypeAdapter

from gateway.domain.errors import GatewayError
from gateway.sandbox.programs import Inspection

LARGEST_BYTES = 32 * 1024 * 1024
AT_ONCE = 2
CPU_S = 60
_LONGEST_S = 180.0
_NEW, _ABANDONED_S = "new-", 3600.0
_LARGEST_REPORT = 1024 * 1024


_INSPECTIONS = TypeAdapter(Inspection)


class Uncompiled(GatewayError):
    """A file that is no plugin; the text says why, and holds nothing that could not be shown."""

    code = "plugin_unusable"


@dataclass(frozen=True, slots=True)
class Compiled:
    path: Path
    sha256: str  # of the WebAssembly file
    inspection: Inspection


class _Report(BaseModel):
    """What the child says of the guest. It has read hostile bytes, so nothing is taken for granted."""

    problem: str | None = Field(None, max_length=500)
    inspection: Inspection | None = None


class _Note(BaseModel):
    """Beside a compiled file. wasmtime runs one with a flipped bit without a word."""

    inspection: Inspection
    seal: str  # over both


class Compiling:
    """Compiled files live in `cache`, which has to be ours alone: whoever writes there runs code."""

    def __init__(self, cache: Path, *, cpu_s: int = CPU_S) -> None:
        self._cache, self._cpu_s = cache, cpu_s
        # All that a compiled file depends on; the last number counts changes in engines.py.
        self._tag = f"wasmtime-{version('wasmtime')}-{platform.machine()}-1"
        self._slots = anyio.CapacityLimiter(AT_ONCE)

    def tidy(self, now: datetime) -> None:
        """Removes what was compiled for another runtime, and what a killed process left behind."""
        for path in self._cache.glob("*-wasmtime-*"):
            if self._tag not in path.name:
                path.unlink(missing_ok=True)
        for folder in self._cache.glob(f"{_NEW}*"):
            with suppress(FileNotFoundError):  # another process may be tidying too
                if now.timestamp() - folder.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(folder, ignore_errors=True)

    async def compiled(self, file: Path, *, pinned: str | None = None) -> Compiled:
        """Raises Uncompiled; with `pinned`, also if the file's content is another."""
        wasm, sha256 = await to_thread.run_sync(_read, file)
        if pinned is not None and sha256 != pinned.lower():
            raise Uncompiled(
                f"{file} has changed: its sha256 is {sha256}, pinned is {pinned}; "
                "look at what changed, and pin it anew if it is meant"
            )
        async with self._slots:
            found = await to_thread.run_sync(self._cached, sha256)
            try:
                return found or await self._compile(wasm, sha256)
            except (OSError, ValueError) as error:  # no room, no process; or no good report
                raise Uncompiled(f"compiling it failed: {type(error).__name__}") from error

    def _names(self, sha256: str) -> tuple[Path, Path]:
        stem = f"{sha256}-{self._tag}"
        return self._cache / f"{stem}.cwasm", self._cache / f"{stem}.json"

    def _cached(self, sha256: str) -> Compiled | None:
        path, note = self._names(sha256)
        try:
            noted = _Note.model_validate_json(note.read_bytes())
            if _seal(noted.inspection, path) == noted.seal:
                return Compiled(path, sha256, noted.inspection)
        except (OSError, ValueError):
            pass  # not there, or not as we left it: it is made again
        return None

    async def _compile(self, wasm: bytes, sha256: str) -> Compiled:
        folder = await to_thread.run_sync(self._folder, wasm)
        try:
            program = [sys.executable, "-I", "-m", "gateway.sandbox.compiler"]
            command = [*program, str(folder), str(self._cpu_s)]
            nowhere = subprocess.DEVNULL
            with anyio.move_on_after(_LONGEST_S):
                child = await anyio.run_process(
                    command,
                    check=False,
                    env={},
                    cwd="/",
                    stdout=nowhere,
                    stderr=nowhere,
                    start_new_session=True,
                )
                return await to_thread.run_sync(self._keep, folder, sha256, child.returncode)
            raise Uncompiled(f"compiling it takes more than {_LONGEST_S:g} s")
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))

    def _folder(self, wasm: bytes) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self._cache, prefix=_NEW))
        (folder / "guest").write_bytes(wasm)
        return folder

    def _keep(self, folder: Path, sha256: str, code: int) -> Compiled:
        """Raises Uncompiled, OSError or ValueError."""
        if code != 0:
            how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else "failed"
            raise Uncompiled(
                f"compiling it {how}: it takes more computing time or memory than is allowed, "
                "or it breaks the compiler"
            )
        with (folder / "report").open("rb") as opened:
            report = _Report.model_validate_json(opened.read(_LARGEST_REPORT))
        if report.inspection is None:
            raise Uncompiled(_plain(report.problem or "it cannot be compiled"))
        path, note = self._names(sha256)
        seal = _seal(report.inspection, folder / "compiled")
        (folder / "compiled").replace(path)
        written = folder / "note"
        written.write_text(_Note(inspection=report.inspection, seal=seal).model_dump_json())
        written.replace(note)
        return Compiled(path, sha256, report.inspection)


def _read(file: Path) -> tuple[bytes, str]:
    """The content and its sha256."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Uncompiled(f"{file} is no regular file")
        if found.st_size > LARGEST_BYTES:
            raise Uncompiled(
                f"{file} has {found.st_size / 2**20:.1f} MiB; "
                f"at most {LARGEST_BYTES >> 20} are allowed"
            )
        with file.open("rb") as opened:
            wasm = opened.read(LARGEST_BYTES)
    except OSError as error:
        raise Uncompiled(f"{file} cannot be read: {error.strerror}") from error
    return wasm, hashlib.sha256(wasm).hexdigest()


def _seal(inspection: Inspection, compiled: Path) -> str:
    sealed = hashlib.sha256(_INSPECTIONS.dump_json(inspection))
    with compiled.open("rb") as opened:
        sealed.update(hashlib.file_digest(opened, "sha256").digest())
    return sealed.hexdigest()


def _plain(text: str) -> str:
    """Names in it are the guest's; they are shown in terminals."""
    return "".join(c if c.isprintable() else " " for c in text)
