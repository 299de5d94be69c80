"""The host function `folder`: all texts of one directory, in batches, and nothing else."""

import json
from pathlib import Path

import anyio
import pytest

from gateway.domain.errors import Denied
from gateway.domain.plugins import PluginDef
from gateway.host.folder import BATCH_BYTES, LARGEST_FILE, Folder


def plugin(folder: object) -> PluginDef:
    return PluginDef("search_code", Path("tool.wasm"), config={"folder": folder})


async def walked(root: Path, prefix: str | None = None) -> list[list[str]]:
    """The paths of each batch."""
    folder, batches, cursor = Folder(), [], None
    while True:
        asked = {"op": "next", "path": prefix, "cursor": cursor}
        answer = json.loads(await folder(json.dumps(asked), plugin(str(root))))
        batches.append([one["path"] for one in answer["files"]])
        cursor = answer["cursor"]
        if cursor is None:
            return batches


def test_every_text_is_given_once_in_order_over_all_batches(tmp_path: Path) -> None:
    names = [f"{a}/{b}.py" for a in ("a", "a-b", "b") for b in range(4)]
    for name in (*names, "z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x" * (BATCH_BYTES // 3))

    batches = anyio.run(walked, tmp_path)

    assert len(batches) > 3
    assert sorted(path for batch in batches for path in batch) == sorted([*names, "z.txt"])


def test_a_prefix_narrows_it(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.py").write_text("1")
    (tmp_path / "two.py").write_text("2")

    assert anyio.run(walked, tmp_path, "src/") == [["src/one.py"]]


def test_what_is_hidden_linked_large_or_no_text_is_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (root / "dir").symlink_to(tmp_path)
    (root / ".env").write_text("KEY=1")
    (root / "binary").write_bytes(b"a\0b")
    (root / "latin").write_bytes(b"\xff\xfe")
    (root / "large").write_text("x" * (LARGEST_FILE + 1))
    (root / "plain").write_text("here")

    assert anyio.run(walked, root) == [["plain"]]


@pytest.mark.parametrize("prefix", ["../", "/etc", "..", "root/../.."])
def test_no_prefix_leads_out_of_the_folder(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "plain").write_text("here")

    assert anyio.run(walked, tmp_path, prefix) == [[]]


@pytest.mark.parametrize("cursor", ["../../etc", "/", "//", "\0", "zzz"])
def test_no_cursor_leads_out_of_the_folder(tmp_path: Path, cursor: str) -> None:
    (tmp_path / "plain").write_text("here")
    asked = json.dumps({"op": "next", "path": None, "cursor": cursor})

    answer = json.loads(anyio.run(Folder(), asked, plugin(str(tmp_path))))

    assert {one["path"] for one in answer["files"]} <= {"plain"}


@pytest.mark.parametrize("folder", [None, 7, "relative/path", ""])
def test_without_an_absolute_folder_the_operator_is_told(folder: object) -> None:
    with pytest.raises(Denied, match="absolute path"):
        anyio.run(Folder(), '{"op": "next"}', plugin(folder))


@pytest.mark.parametrize("asked", ["", "[]", "{}", '{"op": "read"}', '{"op":"next","path":7}'])
def test_what_is_not_understood_is_said(tmp_path: Path, asked: str) -> None:
    with pytest.raises(Denied, match="^send {"):
        anyio.run(Folder(), asked, plugin(str(tmp_path)))
