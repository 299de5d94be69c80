"""The operator's key: new at each start, and only for its owner's eyes."""

from pathlib import Path

from gateway.host.keyfile import NAME, make_key, read_key


def test_a_key_is_read_back_and_only_its_owner_can(tmp_path: Path) -> None:
    key = make_key(tmp_path)

    assert read_key(tmp_path) == key
    assert len(key) >= 32
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_each_start_has_its_own(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.new").write_text("left behind by a crash")

    assert make_key(tmp_path) != make_key(tmp_path)


def test_without_a_key_there_is_none(tmp_path: Path) -> None:
    assert read_key(tmp_path) is None
    (tmp_path / NAME).write_bytes(b"\xff")
    assert read_key(tmp_path) is None
