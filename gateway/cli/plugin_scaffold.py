"""A new plugin: the example of its language, under the plugin's own name."""

import shutil
from pathlib import Path

from gateway.cli.plugin_files import ABOUT, About, BadPlugin, noted, read_about
from gateway.host.files import shipped_folder

_LEFT_OUT = shutil.ignore_patterns(
    "tool.wasm", "core.wasm", "node_modules", "__pycache__", "target"
)
WIT = shipped_folder("sandbox/wit") / "exogate-plugin.wit"


class NoScaffold(BadPlugin):
    """There is no example of this kind in this language."""


def scaffolds() -> dict[tuple[str, str], Path]:
    """(kind, language) -> its directory."""
    folders = [one.parent for one in sorted(shipped_folder("wasm-examples").glob(f"*/{ABOUT}"))]
    return {(read_about(one).kind, one.name.removeprefix("channel-")): one for one in folders}


def made(name: str, kind: str, language: str, folder: Path) -> None:
    """Raises NoScaffold, BadPlugin."""
    known = scaffolds()
    source = known.get((kind, language))
    if source is None:
        pairs = ", ".join(f"--kind {k} --lang {one}" for k, one in known)
        raise NoScaffold(f"there is no example of a {kind} in {language}; there are: {pairs}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadPlugin(f"{folder} is there already and not empty; choose another --dir")
    try:
        _copy(source, read_about(source), name, folder)
    except OSError as error:
        raise BadPlugin(f"{folder} cannot be written: {error.strerror or error}") from error


def _copy(source: Path, example: About, name: str, folder: Path) -> None:
    shutil.copytree(source, folder, ignore=_LEFT_OUT, dirs_exist_ok=True)
    for path in folder.rglob("*"):
        _rename(path, example.name, name)
    if example.build and example.build.core and not any(folder.rglob(WIT.name)):
        shutil.copy(WIT, folder)  # only to be read: such languages know nothing of it


def _rename(path: Path, old: str, name: str) -> None:
    if path.is_dir():
        return
    text = path.read_text(encoding="utf-8").replace(old, name)
    path.write_text(noted(text, "") if path.name == ABOUT else text, encoding="utf-8")
