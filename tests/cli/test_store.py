"""`exogate store copy`: what it says, and that a kill at any of its requests leaves nothing in part."""

from pathlib import Path

import anyio

from gateway.store.opening import open_store
from tests.cli.conftest import Shell
from tests.cli.test_backup import filled, killed, strace
from tests.fakes.clock import FakeClock
from tests.fakes.lived import told
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase

CONFIG = """
[gateway]
port = 0
data_dir = "{folder}/data"

[store]
namespace = "{namespace}"
database = "{database}"
username = "{user}"
password = "{password}"

[agent]
id = "demo"
provider = "demo"
model = "demo"
"""


def written(folder: Path, database: SurrealDatabase) -> Shell:
    """A store in the data directory, and who signs in at the server."""
    place = {"namespace": database.namespace, "database": database.database}
    text = CONFIG.format(folder=folder, user=USER, password=PASSWORD, **place)
    (folder / "config.toml").write_text(text)
    anyio.run(filled, folder / "data")
    return Shell(folder / "config.toml")


def test_both_ways_the_same_tables_with_the_same_digests(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    shell, url = written(tmp_path, surreal_database), surreal_database.url

    went = shell("--json", "store", "copy", "--from", "embedded", "--to", url)
    again = shell("store", "copy", "--from", "embedded", "--to", url)
    back = (
        "--data-dir",
        str(tmp_path / "back"),
        "store",
        "copy",
        "--from",
        url,
        "--to",
        "embedded",
    )
    came = shell("--json", *back)

    assert went.code == 0, went.err
    assert went.json == came.json
    rows = {one["table"]: one["rows"] for one in went.json["tables"]}
    assert (rows["session"], rows["node"], rows["audit"]) == (2, 2, 2)
    assert all(len(one["digest"]) == 64 for one in went.json["tables"])
    assert (again.code, "is not empty" in again.err) == (1, True)
    assert PASSWORD not in went.out + went.err + again.err


def test_what_cannot_be_copied_is_said_in_a_sentence(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    shell = written(tmp_path, surreal_database)

    same = shell("store", "copy", "--from", "embedded", "--to", "embedded")
    empty = ("--data-dir", str(tmp_path / "no"))
    nothing = shell(*empty, "store", "copy", "--from", "embedded", "--to", surreal_database.url)

    assert (same.code, "give one ws:// address" in same.err) == (1, True)
    assert (nothing.code, "nothing to copy" in nothing.err) == (1, True)


async def shown(data_dir: Path) -> object:
    async with open_store("embedded", data_dir, clock=FakeClock()) as stores:
        return await told(stores)


@strace
def test_a_copy_killed_at_any_request_is_begun_anew(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    shell, url = written(tmp_path, surreal_database), surreal_database.url
    words = ["--config", str(shell.config), "store", "copy", "--from", "embedded", "--to", url]
    for when in (8, 12, 16, 24, 40):
        assert killed(words, f"sendto:signal=KILL:when={when}", {"HOME": str(tmp_path)}), when
    copied = shell("store", "copy", "--from", "embedded", "--to", url)
    assert copied.code == 0, copied.err

    back = ("store", "copy", "--from", url, "--to", "embedded")
    assert shell("--data-dir", str(tmp_path / "back"), *back).code == 0
    assert anyio.run(shown, tmp_path / "back") == anyio.run(shown, tmp_path / "data")
