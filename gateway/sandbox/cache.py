"""The cache of compiled WebAssembly files. A limited child process compiles each content once."""

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
from collections.abc import Awaitable, Callable, Iterable
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
LOG_AFTER_S, LOG_EVERY_S = 1.0, 10.0
HOLD_S = 5.0
CPU_S = 60
_LONGEST_S = 180.0
_NEW, _ABANDONED_S = "new-", 3600.0
_LARGEST_REPORT = 1024 * 1024
_LONGEST_WHY = 1000
_INSPECTIONS = TypeAdapter(Inspection)


class Uncompiled(GatewayError):
    """A file is not a plugin; the text says why and is safe to show."""

    code = "plugin_unusable"


@dataclass(frozen=True, slots=True)
class Compiled:
    path: Path
    sha256: str  # of the WebAssembly file
    inspection: Inspection


class _Report(BaseModel):
    """The report of the child. The child has read hostile bytes, so the report is validated."""

    problem: str | None = Field(None, max_length=500)
    inspection: Inspection | None = None


class _Note(BaseModel):
    """The note beside a compiled file. wasmtime would run a file with a flipped bit."""

    inspection: Inspection
    seal: str  # digest of the inspection and the compiled file


class _Refused(BaseModel):
    """The refusal kept in place of a compiled file, so that the same content is refused at once."""

    why: str = Field(max_length=_LONGEST_WHY)
    cpu_s: int  # the limit of the compilation


class CompileCache:
    """Compiles files and keeps the results in `cache`. Only the gateway may write there, because a
    compiled file is code that runs."""

    def __init__(self, cache: Path, *, cpu_s: int = CPU_S, hold_s: float = HOLD_S) -> None:
        self._cache, self._cpu_s, self._hold_s = cache, cpu_s, hold_s
        # The tag names everything that a compiled file depends on; its last number counts changes of
        # the engines in calls.py.
        self._tag = f"wasmtime-{version('wasmtime')}-{platform.machine()}-1"
        self._slots, self._long = anyio.Semaphore(AT_ONCE), anyio.Semaphore(AT_ONCE)
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()  # by sha256

    def tidy(self, now: datetime) -> None:
        """Removes files compiled for another runtime, and the folders of killed processes."""
        for path in self._cache.glob("*-wasmtime-*"):
            if self._tag not in path.name:
                path.unlink(missing_ok=True)
        for folder in self._cache.glob(f"{_NEW}*"):
            with suppress(FileNotFoundError):  # another process may be tidying too
                if now.timestamp() - folder.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(folder, ignore_errors=True)

    async def compile(self, file: Path, *, pinned: str | None = None) -> Compiled:
        """Returns the compiled form of a file. Raises Uncompiled, also if `pinned` is not its
        sha256."""
        wasm, sha256 = await to_thread.run_sync(_read, file)
        if pinned is not None and sha256 != pinned.lower():
            raise Uncompiled(
                f"{file} has changed: its sha256 is {sha256}, the pinned one is {pinned}; "
                "review the change, then pin the new sha256"
            )
        lock = self._locks.setdefault(sha256, anyio.Lock())
        async with lock:  # the same content is compiled once
            found = await to_thread.run_sync(self._load_cached, sha256)
            if isinstance(found, _Refused):
                raise Uncompiled(found.why)
            return found or await self._compile_in_turn(file, partial(self._compile, wasm, sha256))

    async def _compile_in_turn(
        self, file: Path, work: Callable[[], Awaitable[Compiled]]
    ) -> Compiled:
        """Runs a few compilations at a time. A long one moves to slots for long ones, if free."""
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
        if isinstance(one, OSError | ValueError):  # full disk, no process, or an invalid report
            why = str(one) if isinstance(one, OSError) else type(one).__name__
            raise Uncompiled(f"compiling it failed: {why}") from one
        if isinstance(one, Uncompiled):
            raise one
        return one

    async def _report(self, file: Path, held: list[anyio.Semaphore]) -> None:
        """Logs the progress, and moves a long compilation to another slot, until cancelled."""
        since_s = 0.0
        first_s = min(LOG_AFTER_S, self._hold_s)
        for pause_s in chain((first_s, self._hold_s - first_s), repeat(LOG_EVERY_S)):
            await anyio.sleep(pause_s)
            since_s += pause_s
            extra = {"file": str(file), "since_s": since_s, "at_most_s": self._cpu_s}
            log.info("plugin_compiling", extra=extra)
            if since_s >= self._hold_s and held[0] is self._slots:
                with suppress(anyio.WouldBlock):
                    self._long.acquire_nowait()
                    held[0] = self._long
                    self._slots.release()

    def _path(self, sha256: str, kind: str) -> Path:
        return self._cache / f"{sha256}-{self._tag}.{kind}"

    def _refuse(self, sha256: str, why: str, *, is_sure: bool = True) -> Uncompiled:
        """Returns the error to raise, and keeps it if a retry would fail the same way."""
        if is_sure:
            text = _Refused(why=why[:_LONGEST_WHY], cpu_s=self._cpu_s).model_dump_json()
            with suppress(OSError):
                self._path(sha256, "refused").write_text(text, encoding="utf-8")
        return Uncompiled(why)

    def _load_cached(self, sha256: str) -> Compiled | _Refused | None:
        path = self._path(sha256, "cwasm")
        with suppress(OSError, ValueError):
            refusal = self._path(sha256, "refused").read_bytes()
            refused = _Refused.model_validate_json(refusal)
            if refused.cpu_s >= self._cpu_s:
                return refused
        with suppress(OSError, ValueError):  # a missing or changed file is compiled again
            noted = _Note.model_validate_json(self._path(sha256, "json").read_bytes())
            if _seal(noted.inspection, path) == noted.seal:
                return Compiled(path, sha256, noted.inspection)
        return None

    async def _compile(self, wasm: bytes, sha256: str) -> Compiled:
        folder = await to_thread.run_sync(self._folder, wasm)
        began = time.monotonic()
        try:
            program = [sys.executable, "-I", "-m", "gateway.sandbox.compiler"]
            command = [*program, str(folder), str(self._cpu_s)]
            with anyio.move_on_after(_LONGEST_S):
                child = await anyio.run_process(
                    command, check=False, env={}, cwd="/", start_new_session=True,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
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
        """Moves the result of the child into the cache. Raises Uncompiled, OSError or ValueError."""
        code, took_s = ended
        if code != 0:
            how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else "failed"
            why = f"compiling it {how}: it exceeds the CPU time or memory, or crashes the compiler"
            # An early SIGKILL comes from elsewhere, for example from the kernel without memory.
            is_sure = code != -signal.SIGKILL or took_s >= self._cpu_s
            raise self._refuse(sha256, why, is_sure=is_sure)
        with (folder / "report").open("rb") as opened:
            report = _Report.model_validate_json(opened.read(_LARGEST_REPORT))
        if report.inspection is None:
            raise self._refuse(sha256, printable(report.problem or "it cannot be compiled"))
        path = self._path(sha256, "cwasm")
        seal = _seal(report.inspection, folder / "compiled")
        (folder / "compiled").replace(path)
        written = folder / "note"
        written.write_text(_Note(inspection=report.inspection, seal=seal).model_dump_json())
        written.replace(self._path(sha256, "json"))
        return Compiled(path, sha256, report.inspection)


def reuse_compiled(known: Path, cache: Path, files: Iterable[Path]) -> None:
    """Creates `cache` with the results of these files in `known`, so that a trial does not compile them again."""
    cache.mkdir(mode=0o700, parents=True)
    for file in files:
        with suppress(Uncompiled, OSError):  # an incomplete copy fails its seal and is compiled
            for result in known.glob(f"{_read(file)[1]}-*"):
                shutil.copy(result, cache)


def _read(file: Path) -> tuple[bytes, str]:
    """Returns the content of a file and its sha256. Raises Uncompiled."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Uncompiled(f"{file} is not a regular file")
        if found.st_size > LARGEST_BYTES:
            raise Uncompiled(
                f"{file} has {found.st_size / 2**20:.1f} MiB; "
                f"at most {LARGEST_BYTES >> 20} MiB are allowed"
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
