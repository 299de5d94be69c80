"""An archive is whole or it is refused, whatever became of its bytes."""

import zipfile
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.codec import encode
from gateway.domain.backups import ArchiveDamaged, BackupRefused, is_safe_name
from gateway.domain.errors import Busy
from gateway.host.archive import PART, new_archive, open_archive, sweep_parts

STORE, SOUL = b"SQLite" * 40, b"You are a poet."
MEMBERS = {"store.db": STORE, "config/souls/poet.md": SOUL}


def written(path: Path) -> bytes:
    """An archive of two members."""
    path.unlink(missing_ok=True)
    with new_archive(path) as archive:
        for name, content in MEMBERS.items():
            archive.add_bytes(name, content)
        members = [{"name": o.name, "size": o.size, "sha256": o.sha256} for o in archive.members]
        archive.finish({"format": 1, "members": members})
    return path.read_bytes()


def look_through(path: Path) -> None:
    with open_archive(path) as archive:
        for member in archive.members:
            archive.check(member)


def forged(path: Path, change: Callable[[zipfile.ZipFile], object], **manifest: Any) -> None:
    """One that somebody else made, with a digest that is right."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as inside:
        change(inside)
        described = [
            {
                "name": o.filename,
                "size": o.file_size,
                "sha256": sha256(inside.read(o.filename)).hexdigest(),
            }
            for o in inside.infolist()
        ]
        inside.writestr("manifest.json", encode({"format": 1, "members": described, **manifest}))
        inside.comment = bytes(32)
    content = file.getvalue()[:-32]
    path.write_bytes(content + sha256(content).digest())


def test_what_was_put_in_comes_out(tmp_path: Path) -> None:
    content = written(tmp_path / "a.zip")

    with open_archive(tmp_path / "a.zip") as archive:
        for member in archive.members:
            archive.extract(member, tmp_path / "out" / member.name)

    found = {name: (tmp_path / "out" / name).read_bytes() for name in MEMBERS}
    assert found == MEMBERS
    assert content[-32:] == sha256(content[:-32]).digest()
    assert (tmp_path / "a.zip").stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(tmp_path / "a.zip") as plain:  # any other program can read it
        assert plain.testzip() is None
        assert plain.namelist() == [*MEMBERS, "manifest.json"]


def test_no_flipped_byte_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    content = bytearray(written(path))
    for place in range(len(content)):
        content[place] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(ArchiveDamaged):
            look_through(path)
        content[place] ^= 0xFF


def test_an_archive_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    content = written(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ArchiveDamaged):
            look_through(path)
    path.write_bytes(content[:-40])
    with pytest.raises(ArchiveDamaged, match=r"is truncated or extended.*copy it again"):
        look_through(path)


@pytest.mark.parametrize("more", [b"x", bytes(32), b"PK\5\6" + bytes(18) + bytes(32)])
def test_what_was_added_behind_or_before_it_is_damage(tmp_path: Path, more: bytes) -> None:
    path = tmp_path / "a.zip"
    content = written(path)

    for changed in (content + more, more + content):
        path.write_bytes(changed)
        with pytest.raises(ArchiveDamaged):
            look_through(path)


def test_a_member_that_another_program_added_is_damage(tmp_path: Path) -> None:
    written(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as archive:
        archive.writestr("more.txt", "more")

    with pytest.raises(ArchiveDamaged):
        look_through(tmp_path / "a.zip")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_damaged_archive_is_whole_although_its_digest_is_right(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Whoever can make a digest finds no way past the description either, and no other error."""
    path = tmp_path / "a.zip"
    content = bytearray(written(path)[:-32])
    start = data.draw(st.integers(0, len(content) - 1))
    drawn = data.draw(st.binary(min_size=1, max_size=8))
    content[start : start + data.draw(st.integers(0, 8))] = drawn
    path.write_bytes(bytes(content) + sha256(content).digest())

    try:
        with open_archive(path) as archive:
            found = {one.name: (one.size, one.sha256) for one in archive.members}
            for member in archive.members:
                archive.check(member)
    except ArchiveDamaged:
        return
    told = {name: (len(one), sha256(one).hexdigest()) for name, one in MEMBERS.items()}
    assert found == told  # what was changed says nothing: a time, a mode


@pytest.mark.parametrize(
    "name", ["../out", "/etc/passwd", "a/../b", "a//b", "a\\b", "", "./a", "a\nb"]
)
def test_no_member_leaves_the_folder_that_it_is_taken_out_to(tmp_path: Path, name: str) -> None:
    assert not is_safe_name(name)
    forged(tmp_path / "a.zip", lambda inside: inside.writestr(zipfile.ZipInfo(name), b"x"))

    with pytest.raises(ArchiveDamaged):
        look_through(tmp_path / "a.zip")


def test_an_archive_that_unpacks_to_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    def bomb(inside: zipfile.ZipFile) -> None:
        inside.writestr("store.db", bytes(1 << 20), zipfile.ZIP_DEFLATED)

    forged(tmp_path / "a.zip", bomb)
    with pytest.raises(ArchiveDamaged, match="a member that no backup has"):
        look_through(tmp_path / "a.zip")


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    def twice(inside: zipfile.ZipFile) -> None:
        inside.writestr("store.db", bytes(4096))
        again = zipfile.ZipInfo("again.db")
        first = inside.filelist[0]
        again.header_offset, again.CRC = first.header_offset, first.CRC
        again.file_size = again.compress_size = first.file_size
        inside.filelist.append(again)
        inside.NameToInfo["again.db"] = first  # so that its digest can be told

    forged(tmp_path / "a.zip", twice)
    with pytest.raises(ArchiveDamaged):
        look_through(tmp_path / "a.zip")


def test_a_description_that_is_not_of_its_members_is_refused(tmp_path: Path) -> None:
    for members in ([], "x", [{"name": "store.db"}], [{"name": 1, "size": "x", "sha256": None}]):
        forged(
            tmp_path / "a.zip", lambda inside: inside.writestr("store.db", b"x"), members=members
        )
        with pytest.raises(ArchiveDamaged):
            look_through(tmp_path / "a.zip")


def test_files_that_are_no_archives_are_told_from_damaged_ones(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")

    with pytest.raises(ArchiveDamaged, match="is not a backup of exogate"):
        look_through(tmp_path / "text")
    with pytest.raises(BackupRefused, match="cannot be read"):
        look_through(tmp_path / "nothing")
    with pytest.raises(BackupRefused, match="cannot be read"):
        look_through(tmp_path)


def test_nothing_is_left_of_an_archive_that_was_not_finished(tmp_path: Path) -> None:
    def fail() -> None:
        with new_archive(tmp_path / "a.zip") as archive:
            archive.add_bytes("store.db", STORE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert [*tmp_path.iterdir()] == []


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("mine")

    with pytest.raises(BackupRefused, match="already exists"), new_archive(tmp_path / "a.zip"):
        pass

    assert (tmp_path / "a.zip").read_text() == "mine"


def test_what_a_killed_backup_left_is_swept_but_not_what_another_writes(tmp_path: Path) -> None:
    (tmp_path / f"old.zip{PART}").write_text("half")
    with new_archive(tmp_path / "a.zip") as archive:
        sweep_parts(tmp_path)
        assert [one.name for one in tmp_path.iterdir()] == [f"a.zip{PART}"]
        with pytest.raises(Busy), new_archive(tmp_path / "a.zip"):
            pass
        archive.add_bytes("store.db", STORE)
        archive.finish({"format": 1, "members": []})

    assert [one.name for one in tmp_path.iterdir()] == ["a.zip"]
