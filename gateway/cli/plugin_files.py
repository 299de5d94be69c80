"""What `exogate plugin` is given: a .wasm file, a directory with plugin.toml and tool.wasm, or a name."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.cli.known import known
from gateway.config.plugins import BUNDLED
from gateway.config.sections import PLUGIN_NAME, BadCapability, parse_capability
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import Capability, PluginDef, PluginKind
from gateway.domain.text import choose, quoted

ABOUT, WASM, CASES = "plugin.toml", "tool.wasm", "cases.json"
PluginName = Annotated[str, Field(pattern=PLUGIN_NAME, max_length=32)]
_NAME: TypeAdapter[str] = TypeAdapter(PluginName)


class BadPlugin(GatewayError):
    """What was given is no plugin, or not a whole one; the text says what to do."""

    code = "bad_plugin"


class _Table(BaseModel):
    """More keys may be there; they are not looked at."""

    model_config = ConfigDict(strict=True, frozen=True)


class Build(_Table):
    command: str
    needs: list[str] = []
    core: str | None = None  # what the command makes, if that is yet to become a component


class About(_Table):
    """plugin.toml: the words of the plugin's author."""

    name: PluginName
    version: str = ""
    kind: PluginKind = "tool"
    description: str = ""
    capabilities: list[str] = []  # exactly what it asks for
    asks: list[str] = []  # what only the operator can name: http:HOST
    sha256: str = ""
    build: Build | None = None

    @property
    def asked(self) -> tuple[Capability, ...]:
        """Those that are written as they should be; `problems` has the others."""
        return tuple(one for one in self._read() if not isinstance(one, BadCapability))

    @property
    def problems(self) -> tuple[str, ...]:
        wrong = (one for one in self._read() if isinstance(one, BadCapability))
        return tuple(f"{ABOUT}: {error}" for error in wrong)

    def _read(self) -> Iterator[Capability | BadCapability]:
        for text in self.capabilities:
            try:
                yield parse_capability(text)
            except BadCapability as error:
                yield error


@dataclass(frozen=True, slots=True)
class Given:
    """A plugin's file, and what its author says of it if that stands beside it."""

    name: str
    file: Path
    about: About | None = None
    bundled: str | None = None

    @property
    def asked(self) -> tuple[Capability, ...]:
        return self.about.asked if self.about else ()

    @property
    def cases(self) -> Path:
        return self.file.parent / CASES

    @property
    def plugin(self) -> PluginDef:
        """As it would be configured if it got what it asks for."""
        is_bundled = self.bundled is not None
        return PluginDef(self.name, self.file, self.asked, is_bundled=is_bundled)

    def called(self, name: str | None) -> "Given":
        """Raises BadPlugin if no plugin can be called so."""
        return replace(self, name=checked_name(name or self.name))


def given(text: str) -> Given:
    """Raises BadPlugin."""
    if text.startswith(BUNDLED):
        return _bundled(text.removeprefix(BUNDLED))
    path = Path(text)
    file = path / WASM if path.is_dir() else path
    about = read_about(path) if path.is_dir() else _beside(path)
    if not file.is_file():
        build = f"; build it with `exogate plugin build {path}`" if about and about.build else ""
        raise BadPlugin(f"there is no file {quoted(str(file))}{build}")
    return Given(about.name if about else _slug(file.stem), file.absolute(), about)


def given_as(plugin: PluginDef) -> Given:
    """The file of a configured plugin."""
    bundled = plugin.name if plugin.is_bundled else None
    return Given(plugin.name, plugin.path, _beside(plugin.path), bundled)


def _beside(file: Path) -> About | None:
    is_there = file.name == WASM and (file.parent / ABOUT).is_file()
    return read_about(file.parent) if is_there else None


def _bundled(name: str) -> Given:
    bundled = known().bundled
    if name not in bundled:
        raise BadPlugin(f"no plugin {quoted(name)} is bundled; {choose(name, bundled)}")
    file = bundled[name].file
    return Given(name, file, read_about(file.parent), bundled=name)


def read_about(folder: Path) -> About:
    """Raises BadPlugin with everything that is wrong."""
    path = folder / ABOUT
    try:
        return About.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise BadPlugin(
            f"there is no {quoted(str(path))}; give a file, or a directory that has it"
        ) from error
    except (OSError, ValueError) as error:
        raise BadPlugin(f"{path} cannot be used: {problems_of(error)}") from error


def problems_of(error: OSError | ValueError) -> str:
    """Where and what; never a value, which may be anything."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [".".join(map(str, one["loc"])) for one in found]
    said = [
        f"{at}: {one['msg']}" if at else one["msg"] for at, one in zip(places, found, strict=True)
    ]
    return "; ".join(said[:10])


def noted(text: str, sha256: str) -> str:
    """A plugin.toml with another sha256, all else as it was."""
    line = f'sha256 = "{sha256}"'
    text, count = re.subn(r"(?m)^sha256[ \t]*=.*$", line, text, count=1)
    return text if count else f"{line}\n{text}"


def replace_file(path: Path, content: bytes) -> None:
    """Whoever reads it finds the old content or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def checked_name(name: str) -> str:
    """Raises BadPlugin."""
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        rule = "up to 32 lower-case letters, digits, - and single _ inside"
        raise BadPlugin(f"a plugin cannot be named {quoted(name)}: use {rule}") from error


def _slug(stem: str) -> str:
    """The name of a file as the name of a plugin, as far as that goes."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:32] or "plugin"
