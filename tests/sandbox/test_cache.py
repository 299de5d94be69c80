"""Files of any kind become compiled guests or a sentence; what lies in the cache is not believed."""

import os
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.sandbox.cache import LARGEST_BYTES, CompileCache, Compiled, Uncompiled
from tests.fakes.sandbox import a_stage
from tests.fakes.wat import ECHO, built, kept

COUNTED = built(
    '(module {{base}} (func (export "handle-tool-call") (param i32 i32) (result i32) unreachable))'
)


class Counting(CompileCache):
    """Knows how many children were started."""

    children = 0

    async def _compile(self, wasm: bytes, sha256: str) -> Compiled:
        self.children += 1
        return await super()._compile(wasm, sha256)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir()
    return cache


def compiled(compiling: CompileCache, file: Path, pinned: str | None = None) -> Compiled:
    async def run() -> Compiled:
        with anyio.fail_after(60):
            return await compiling.compile(file, pinned=pinned)

    return anyio.run(run)


def refusal(compiling: CompileCache, file: Path, pinned: str | None = None) -> str:
    with pytest.raises(Uncompiled) as refused:
        compiled(compiling, file, pinned)
    assert str(refused.value).isprintable()
    return str(refused.value)


def test_the_same_content_is_compiled_once(own: Path, tmp_path: Path) -> None:
    one, other = kept(tmp_path, "one", ECHO), kept(tmp_path, "other", ECHO)
    first = Counting(own)
    found, again = compiled(first, one), compiled(first, other)
    later = Counting(own)
    after_a_restart = compiled(later, one)

    assert (first.children, later.children) == (1, 0)
    assert found == again == after_a_restart
    assert [path.name for path in own.iterdir() if path.name.startswith("new-")] == []


@pytest.fixture(params=["code", "note", "imports"])
def tampered(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_changed_cache_is_made_again(own: Path, tmp_path: Path, tampered: str) -> None:
    file = kept(tmp_path, "echo", ECHO)
    compiling = Counting(own)
    found = compiled(compiling, file)
    note = found.path.with_suffix(".json")
    match tampered:
        case "code":
            code = bytearray(found.path.read_bytes())
            code[len(code) // 2] ^= 1
            found.path.write_bytes(code)
        case "note":
            note.write_text("{")
        case "imports":
            text = note.read_text().replace('"imports":[]', '"imports":["wasi:x"]')
            assert "wasi:x" in text
            note.write_text(text)

    again = compiled(compiling, file)

    assert compiling.children == 2
    assert again == found


@pytest.mark.requirement("S-003-Plugin-08")
def test_a_file_that_changed_since_it_was_pinned_is_refused(own: Path, tmp_path: Path) -> None:
    compiling = Counting(own)
    file = kept(tmp_path, "echo", ECHO)
    sha256 = compiled(compiling, file).sha256
    compiled(compiling, file, sha256.upper())
    file.write_bytes(COUNTED)

    told = refusal(compiling, file, sha256)

    assert "has changed" in told
    assert sha256 in told
    assert compiling.children == 1


def test_what_is_too_large_is_not_read(own: Path, tmp_path: Path) -> None:
    file = tmp_path / "huge.wasm"
    with file.open("wb") as opened:
        opened.truncate(50 * 1024 * 1024)

    assert LARGEST_BYTES == 32 * 1024 * 1024
    assert "50.0 MiB; at most 32" in refusal(CompileCache(own), file)


NO_WASM = {
    "empty": b"",
    "text": b"(module)",
    "magic": b"\0asn\1\0\0\0",
    "half": ECHO[:6],
    "version": b"\0asm\x63\0\0\0" + ECHO[8:],
    "cut": ECHO[: len(ECHO) // 2],
    "elf": b"\x7fELF" + bytes(100),
    "escapes": b"\0asm\1\0\0\0" + b"\2\x13\1\x08\x1b[31mred\x07\x1b[2Jend\0\0",
}


@pytest.mark.requirement("S-003-Plugin-08")
@pytest.mark.parametrize("content", NO_WASM)
def test_what_is_no_webassembly_is_refused(own: Path, tmp_path: Path, content: str) -> None:
    refusal(CompileCache(own), kept(tmp_path, "guest", NO_WASM[content]))

    assert [path.suffix for path in own.iterdir()] == [".refused"]


def test_what_is_refused_is_not_compiled_again_at_the_next_start(own: Path, tmp_path: Path) -> None:
    file = kept(tmp_path, "guest", NO_WASM["cut"])
    first, later, another = Counting(own), Counting(own), Counting(own)
    another._tag = "wasmtime-0.0.0-of-tomorrow"
    told = [refusal(one, file) for one in (first, first, later, another)]
    file.write_bytes(ECHO)
    compiled(later, file)

    assert told == [told[0]] * 4
    assert (first.children, later.children, another.children) == (1, 1, 1)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device"])
def test_what_is_no_file_is_refused_at_once(own: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "guest"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")

    told = refusal(CompileCache(own), path)

    assert str(path) in told


def many_functions(count: int) -> bytes:
    """A module that is small, and a lot to compile."""
    sections = {
        1: b"\1\x60\0\0",
        3: leb(count) + bytes(count),
        10: leb(count) + b"\2\0\x0b" * count,
    }
    return b"\0asm\1\0\0\0" + b"".join(
        bytes([kind]) + leb(len(section)) + section for kind, section in sections.items()
    )


def leb(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + leb(rest) if rest else bytes([low])


@pytest.fixture
def impatient(cache: Path) -> CompileCache:
    return CompileCache(cache, cpu_s=1)


async def test_a_compile_bomb_is_killed_while_others_work(
    impatient: CompileCache, cache: Path, tmp_path: Path
) -> None:
    bomb = await to_thread.run_sync(kept, tmp_path, "bomb", many_functions(400_000))
    done, answers = anyio.Event(), 0

    async def explode() -> None:
        with pytest.raises(Uncompiled, match="it exceeds the CPU time or memory"):
            await impatient.compile(bomb)
        done.set()

    with anyio.fail_after(30):
        async with a_stage(cache, tmp_path) as stage, anyio.create_task_group() as group:
            good = await stage.load(ECHO, name="good")
            group.start_soon(explode)
            while not done.is_set():
                answers += (await stage.run(good)).status == "ok"

    assert answers > 10
    began = anyio.current_time()
    assert isinstance(await refused(impatient, bomb), Uncompiled)
    assert anyio.current_time() - began < 0.9  # it is not tried again


async def refused(compiling: CompileCache, file: Path) -> Exception | None:
    try:
        await compiling.compile(file)
    except Uncompiled as error:
        return error
    return None


@pytest.fixture
def generous(own: Path) -> CompileCache:
    return CompileCache(own, hold_s=0.2)


async def test_what_takes_long_to_compile_keeps_no_other_waiting(
    generous: CompileCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiling = generous
    caplog.set_level("INFO")
    wasm = {"a": many_functions(400_000), "b": many_functions(400_001), "good": ECHO}
    *bombs, good = [await to_thread.run_sync(kept, tmp_path, *one) for one in wasm.items()]
    async with anyio.create_task_group() as group:
        for bomb in bombs:
            group.start_soon(refused, compiling, bomb)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            found = await compiling.compile(good)
            again = await compiling.compile(good)
        group.cancel_scope.cancel()

    assert found == again
    words = [one.message for one in caplog.records]
    assert "plugin_compiling" in words


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    told = refusal(CompileCache(tmp_path / "nowhere"), kept(tmp_path, "echo", ECHO))

    assert f"failed: [Errno 2] No such file or directory: '{tmp_path}/nowhere/" in told
