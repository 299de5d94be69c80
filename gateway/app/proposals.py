"""Changes of the configuration by API: proposed, shown and checked first, then written and put into force."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import anyio
from anyio import to_thread

from gateway.api import operating as api
from gateway.api.declarations import build
from gateway.api.errors import InvalidParams
from gateway.app.doctor import Examination, examined, results_of
from gateway.app.upkeep import UPKEEP_CHECKS, Upkeep
from gateway.config import editing
from gateway.config.editing import parse_path, with_patch
from gateway.config.load import LoadedConfig, read
from gateway.config.problems import ConfigInvalid, ConfigProblem
from gateway.config.secrets import is_file_name, secret_name, write_secret
from gateway.config.toml import CannotEdit
from gateway.config.values import Inputs
from gateway.domain.errors import Conflict

MOST = 32  # proposals that are remembered; the oldest is forgotten


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the file would be, and the secret files that it refers to."""

    path: Path
    inputs: Inputs
    before: str
    after: str
    secrets: Mapping[str, str]
    errors: tuple[ConfigProblem, ...]

    @property
    def hash(self) -> str:
        told = repr((str(self.path), self.before, self.after, sorted(self.secrets.items())))
        return sha256(told.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """How the configuration of this process is found, read and judged. `usual`: the file that is made if there is
    none."""

    path: Callable[[], Path | None]
    usual: Path
    inputs: Callable[[], Inputs]

    def read(self, path: Path | None) -> LoadedConfig:
        return read(path or self.path(), self.inputs())


class Proposals:
    """`origin` is the file that the gateway was started with; `file` is set once it is known."""

    def __init__(self, origin: Path | None, reload: Callable[[], Awaitable[api.Reloaded]]) -> None:
        self.file: ConfigFile | None = None
        self._origin, self._reload = origin, reload
        self._known: dict[str, Proposal] = {}
        self._turn = anyio.Lock()

    async def examine(self, upkeep: Upkeep, *, is_live: bool) -> api.DoctorReport:
        """Runs the checks of `exogate doctor` here; or only those of a gateway at work."""
        file, path = self._file, self._origin

        def run() -> Examination:
            found = path or file.path()
            return examined(lambda: file.read(found).config, found)

        found = results_of((check(upkeep) for check in UPKEEP_CHECKS), path)
        return (found if is_live else (await to_thread.run_sync(run)).beside(found)).told

    @property
    def _file(self) -> ConfigFile:
        if self.file is None:
            raise Conflict("this gateway was started without a way to read its configuration again")
        return self.file

    async def propose(
        self, patch: Mapping[str, object], secrets: Mapping[str, str]
    ) -> api.Proposed:
        """Raises InvalidParams for what cannot be written at all."""
        try:
            made = await to_thread.run_sync(self._made, patch, secrets)
        except CannotEdit as error:
            raise InvalidParams(str(error), [("patch", str(error))]) from error
        self._known[made.hash] = made
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        name = made.inputs.name(made.path)
        return api.Proposed(
            diff=editing.difference(made.before, made.after, name),
            errors=[build(api.ConfigError, one) for one in made.errors],
            hash=made.hash,
        )

    def _made(self, patch: Mapping[str, object], secrets: Mapping[str, str]) -> Proposal:
        file = self._file
        path, inputs = self._origin or file.path() or file.usual, file.inputs()
        files, references = dict[str, str](), dict[str, object]()
        for key, value in secrets.items():
            name = key if is_file_name(key) and "." not in key else secret_name(parse_path(key))
            files[name] = value
            if name != key:
                references[key] = f"${{file:{name}}}"
        inputs = replace(inputs, pending=files)
        before = editing.read_text(path, inputs)
        after = with_patch(with_patch(before, patch), references)
        try:
            editing.check_text(after, path, inputs)
        except ConfigInvalid as error:
            return Proposal(path, inputs, before, after, files, error.problems)
        return Proposal(path, inputs, before, after, files, ())

    async def apply(self, hash_: str) -> api.Applied:
        """Raises Conflict if the file is not what it was, InvalidParams if it would not be valid."""
        async with self._turn:
            made = self._known.get(hash_)
            if made is None:
                raise Conflict("there is no such proposal, or not any more; propose it again")
            _refuse(made.errors)
            undo = await to_thread.run_sync(_write, made)
            done = await self._reload()
            if done.errors:  # valid, and still of no use: a plugin that cannot be built
                await to_thread.run_sync(undo)
                await self._reload()
                _refuse(done.errors)
            del self._known[hash_]
            return api.Applied(generation=done.generation)


def _refuse(errors: Sequence[ConfigProblem] | Sequence[api.ConfigError]) -> None:
    if errors:
        problems = [(one.key or "patch", f"{one.message}; {one.fix}") for one in errors]
        raise InvalidParams("the configuration would not be valid", problems)


def _write(made: Proposal) -> Callable[[], None]:
    """Writes secrets, then the file; returns what takes it back. Raises Conflict."""
    was_there = made.path.exists()
    try:
        if editing.read_text(made.path, made.inputs) != made.before:
            raise CannotEdit("the file changed meanwhile; propose it again")
        undo = [write_secret(made.inputs.home, *one) for one in made.secrets.items()]
        if made.after != made.before:
            editing.save(made.path, made.before, made.after, made.inputs)
    except CannotEdit as error:
        raise Conflict(str(error)) from error

    def back() -> None:
        if made.after != made.before:
            editing.restore(made.path, made.before if was_there else None)
        for one in undo:
            one()

    return back
