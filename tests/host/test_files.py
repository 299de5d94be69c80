"""Files: texts that cannot be used are refused with a sentence, changes are noticed, a key is its owner's."""

from pathlib import Path

import anyio
import pytest

from gateway.domain.errors import SoulUnreadable
from gateway.host.files import (
    KEY,
    LOOK_EVERY_S,
    MOST_BYTES,
    FileTexts,
    make_key,
    read_key,
    shipped_folder,
)
from tests.fakes.clock import FakeClock


@pytest.mark.requirement("S-003-Soul-04")
@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"a\0b", "NUL"),
        (b"x" * (MOST_BYTES + 1), "larger than"),
    ],
)
async def test_a_text_that_cannot_be_used_is_refused_with_its_name(
    tmp_path: Path, raw: bytes | None, says: str
) -> None:
    file = anyio.Path(tmp_path / "soul.md")
    if raw is not None:
        await file.write_bytes(raw)

    with pytest.raises(SoulUnreadable, match=says) as caught:
        await FileTexts(FakeClock()).read(str(file))

    assert str(file) in str(caught.value)


async def test_a_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    file = anyio.Path(tmp_path / "soul.md")
    await file.write_bytes(b"\xef\xbb\xbfhi")

    assert await FileTexts(FakeClock()).read(str(file)) == "hi"


@pytest.mark.requirement("S-003-Soul-03")
async def test_a_file_that_is_replaced_removed_or_back_is_noticed_once(tmp_path: Path) -> None:
    file, other = anyio.Path(tmp_path / "soul.md"), anyio.Path(tmp_path / "other.md")
    await file.write_text("one")
    clock, noticed = FakeClock(), list[str]()

    async def changed(path: str) -> None:
        noticed.append(path)

    async def look() -> int:
        clock.move(LOOK_EVERY_S)
        await clock.until_someone_sleeps()
        return len(noticed)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(FileTexts(clock).watch, [str(file)], changed)
            await clock.until_someone_sleeps()
            untouched = await look()
            await other.write_text("two")
            await other.replace(str(file))
            replaced = await look()
            await file.unlink()
            removed = await look()
            group.cancel_scope.cancel()

    assert (untouched, replaced, removed) == (0, 1, 2)
    assert set(noticed) == {str(file)}


def test_a_key_is_read_back_and_only_its_owner_can(tmp_path: Path) -> None:
    key = make_key(tmp_path)

    assert read_key(tmp_path) == key
    assert len(key) >= 32
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600


def test_each_start_has_its_own(tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.new").write_text("left behind by a crash")

    assert make_key(tmp_path) != make_key(tmp_path)


def test_without_a_key_there_is_none(tmp_path: Path) -> None:
    assert read_key(tmp_path) is None
    (tmp_path / KEY).write_bytes(b"\xff")
    assert read_key(tmp_path) is None


def test_in_a_checkout_it_stands_beside_the_package() -> None:
    assert shipped_folder("souls") == Path(__file__).parents[2] / "souls"
    assert (shipped_folder("souls") / "default.md").is_file()
