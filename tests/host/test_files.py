"""Files: texts that cannot be used are refused with a sentence, changes are noticed, a key is its owner's."""

from pathlib import Path

import anyio
import pytest

from gateway.domain.errors import SoulUnreadable
from gateway.host.files import (
    KEY,
    MOST_BYTES,
    FileTexts,
    digests_of,
    make_key,
    read_key,
    shipped_folder,
    stamps_of,
)


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
        await FileTexts().read(str(file))

    assert str(file) in str(caught.value)


async def test_a_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    file = anyio.Path(tmp_path / "soul.md")
    await file.write_bytes(b"\xef\xbb\xbfhi")

    assert await FileTexts().read(str(file)) == "hi"


def test_a_file_that_is_replaced_removed_or_back_has_another_stamp(tmp_path: Path) -> None:
    file, other = tmp_path / "soul.md", tmp_path / "other.md"
    file.write_text("one")
    seen = [stamps_of([file]), stamps_of([file])]
    other.write_text("two")
    other.replace(file)
    seen.append(stamps_of([file]))
    file.unlink()
    seen.append(stamps_of([file]))

    assert seen[0] == seen[1]
    assert seen[1] != seen[2]
    assert seen[3] == {file: None}


def test_a_digest_is_that_of_the_content_and_empty_for_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("same")
    (tmp_path / "two").write_text("same")
    found = digests_of([tmp_path / "one", tmp_path / "two", tmp_path / "none", tmp_path])

    assert len({found[tmp_path / "one"], found[tmp_path / "two"]}) == 1
    assert (found[tmp_path / "none"], found[tmp_path]) == ("", "")


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
