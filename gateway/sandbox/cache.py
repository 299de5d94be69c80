"""WebAssembly files become compiled ones: in a limited child process, once for each content."""

import hashlib
import logging
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from itertools import chain, repeat
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
from anyio import CancelScope, to_thread
from pydantic import BaseModel, Field, TypeAdapter

from gateway.domain.errors import GatewayError
from gateway.domain.text import printable
from gateway.sandbox.protocol import Inspection

log = logging.getLogger(__name__)

LARGEST_BYTES = 32 * 1024 * 1024
AT_ONCE = 2
TOLD_AFTER_S, TOLD_EVERY_S = 1.0, 10.0
HOLD_S = 5.0
CPU_S = 60
_LONGEST_S = 180.0
_NEW, _ABANDONED_S = "new-", 3600.0
_LARGEST_REPORT = 1024 * 1024
_LONGEST_WHY = 1000


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


class _Refused(BaseModel):
    """In place of a compiled file: the same content is refused for the same reason, and at once."""

    why: str = Field(max_length=_LONGEST_WHY)
    cpu_s: int  # that it had


class CompileCache:
    """Compiled files live in `cache`, which has to be ours alone: whoever writes there runs code."""

    def __init__(self, cache: Path, *, cpu_s: int = CPU_S, hold_s: float = HOLD_S) -> None:
        self._cache, self._cpu_s, self._hold_s = cache, cpu_s, hold_s
        # All that a compiled file depends on; the last number counts changes of the engines in calls.py.
        self._tag = f"wasmtime-{version('wasmtime')}-{platform.machine()}-1"
        self._slots, self._long = anyio.Semaphore(AT_ONCE), anyio.Semaphore(AT_ONCE)
        self._at_work: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def tidy(self, now: datetime) -> None:
        """Removes what was compiled for another runtime, and what a killed process left behind."""
        for path in self._cache.glob("*-wasmtime-*"):
            if self._tag not in path.name:
                path.unlink(missing_ok=True)
        for folder in self._cache.glob(f"{_NEW}*"):
            with suppress(FileNotFoundError):  # another process may be tidying too
                if now.timestamp() - folder.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(folder, ignore_errors=True)

    async def compile(self, file: Path, *, pinned: str | None = None) -> Compiled:
        """Raises Uncompiled; with `pinned`, also if the file's content is another."""
        wasm, sha256 = await to_thread.run_sync(_read, file)
        if pinned is not None and sha256 != pinned.lower():
            raise Uncompiled(
                f"{file} has changed: its sha256 is {sha256}, pinned is {pinned}; "
                "look at what changed, and pin it anew if it is meant"
            )
        lock = self._at_work.setdefault(sha256, anyio.Lock())
        async with lock:  # the same content is compiled once
            found = await to_thread.run_sync(self._cached, sha256)
            if isinstance(found, _Refused):
                raise Uncompiled(found.why)
            return found or await self._compile_in_turn(file, partial(self._compile, wasm, sha256))

    async def _compile_in_turn(
        self, file: Path, work: Callable[[], Awaitable[Compiled]]
    ) -> Compiled:
        """A few at a time. What takes long gives its place to the next; of those there are few too."""
        held = [self._slots]
        await self._slots.acquire()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._report, file, held)
                one: Compiled | Uncompiled | OSError | ValueError
                try:
                    one = await work()
                except (Uncompiled, OSError, ValueError) as error:
                    one = error
                group.cancel_scope.cancel()
        finally:
            held[0].release()
        if isinstance(one, OSError | ValueError):  # no room, no process; or no good report
            why = str(one) if isinstance(one, OSError) else type(one).__name__
            raise Uncompiled(f"compiling it failed: {why}") from one
        if isinstance(one, Uncompiled):
            raise one
        return one

    async def _report(self, file: Path, held: list[anyio.Semaphore]) -> None:
        """Until it is done."""
        since_s = 0.0
        first_s = min(TOLD_AFTER_S, self._hold_s)
        for pause_s in chain((first_s, self._hold_s - first_s), repeat(TOLD_EVERY_S)):
            await anyio.sleep(pause_s)
            since_s += pause_s
            extra = {"file": str(file), "since_s": since_s, "at_most_s": self._cpu_s}
            log.info("plugin_compiling", extra=extra)
            if since_s >= self._hold_s and held[0] is self._slots:
                with suppress(anyio.WouldBlock):
                    self._long.acquire_nowait()
                    held[0] = self._long
                    self._slots.release()

    def _names(self, sha256: str) -> tuple[Path, Path]:
        stem = f"{sha256}-{self._tag}"
        return self._cache / f"{stem}.cwasm", self._cache / f"{stem}.json"

    def _refusal(self, sha256: str) -> Path:
        return self._cache / f"{sha256}-{self._tag}.refused"

    def _refused(self, sha256: str, why: str, *, is_sure: bool = True) -> Uncompiled:
        """To be raised; kept if another try would end in the same way."""
        if is_sure:
            text = _Refused(why=why[:_LONGEST_WHY], cpu_s=self._cpu_s).model_dump_json()
            with suppress(OSError):
                self._refusal(sha256).write_text(text, encoding="utf-8")
        return Uncompiled(why)

    def _cached(self, sha256: str) -> Compiled | _Refused | None:
        path, note = self._names(sha256)
        with suppress(OSError, ValueError):
            refused = _Refused.model_validate_json(self._refusal(sha256).read_bytes())
            if refused.cpu_s >= self._cpu_s:
                return refused
        try:
            noted = _Note.model_validate_json(note.read_bytes())
            if _seal(noted.inspection, path) == noted.seal:
                return Compiled(path, sha256, noted.inspection)
        except (OSError, ValueError):
            pass  # not there, or not as we left it: it is made again
        return None

    async def _compile(self, wasm: bytes, sha256: str) -> Compiled:
        folder = await to_thread.run_sync(self._folder, wasm)
        began = time.monotonic()
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
                took_s = time.monotonic() - began
                ended = (child.returncode, took_s)
                return await to_thread.run_sync(self._keep, folder, sha256, ended)
            raise Uncompiled(f"compiling it takes more than {_LONGEST_S:g} s")
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))

    def _folder(self, wasm: bytes) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self._cache, prefix=_NEW))
        (folder / "guest").write_bytes(wasm)
        return folder

    def _keep(self, folder: Path, sha256: str, ended: tuple[int, float]) -> Compiled:
        """Raises Uncompiled, OSError or ValueError."""
        code, took_s = ended
        if code != 0:
            how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else "failed"
            why = (
                f"compiling it {how}: it takes more computing time or memory than is allowed, "
                "or it breaks the compiler"
            )
            # Who is killed early was killed by somebody else, perhaps for want of memory.
            is_sure = code != -signal.SIGKILL or took_s >= self._cpu_s
            raise self._refused(sha256, why, is_sure=is_sure)
        with (folder / "report").open("rb") as opened:
            report = _Report.model_validate_json(opened.read(_LARGEST_REPORT))
        if report.inspection is None:
            raise self._refused(sha256, printable(report.problem or "it cannot be compiled"))
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
