"""Changes of the configuration by API: a proposal shows and checks a change, then `apply` writes and reloads it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import anyio
from anyio import to_thread

from gateway.api import operating as api
from gateway.api.declarations import build
from gateway.api.errors import InvalidParams
from gateway.app.doctor import UPKEEP_CHECKS, Examination, Upkeep, examine, run_checks
from gateway.config import editing
from gateway.config.editing import parse_path, with_patch
from gateway.config.load import LoadedConfig, read
from gateway.config.problems import ConfigInvalid, ConfigProblem
from gateway.config.secrets import is_file_name, secret_name, write_secret
from gateway.config.toml import CannotEdit
from gateway.config.values import Inputs
from gateway.domain.errors import Conflict

MOST = 32  # remembered proposals; the oldest is dropped


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new text of the file, and the secret files that it refers to."""

    path: Path
    inputs: Inputs
    before: str
    after: str
    secrets: Mapping[str, str]
    errors: tuple[ConfigProblem, ...]

    @property
    def hash(self) -> str:
        text = repr((str(self.path), self.before, self.after, sorted(self.secrets.items())))
        return sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Finds and reads the configuration of this process. `default` is the path of a new file."""

    path: Callable[[], Path | None]
    default: Path
    inputs: Callable[[], Inputs]

    def read(self, path: Path | None) -> LoadedConfig:
        return read(path or self.path(), self.inputs())


class Proposals:
    """The proposed changes. `origin` is the file of the start; `file` is None until `running` sets it."""

    def __init__(self, origin: Path | None, reload: Callable[[], Awaitable[api.Reloaded]]) -> None:
        self.file: ConfigFile | None = None
        self._origin, self._reload = origin, reload
        self._known: dict[str, Proposal] = {}
        self._turn = anyio.Lock()

    async def examine(self, upkeep: Upkeep, *, is_live: bool) -> api.DoctorReport:
        """Runs the checks of `exogate doctor`; with `is_live` only those of a running gateway."""
        file, path = self._file, self._origin

        def examine_file() -> Examination:
            found = path or file.path()
            return examine(lambda: file.read(found).config, found)

        live = run_checks((check(upkeep) for check in UPKEEP_CHECKS), path)
        if is_live:
            return live.report
        return (await to_thread.run_sync(examine_file)).merge(live).report

    @property
    def _file(self) -> ConfigFile:
        if self.file is None:
            raise Conflict("this gateway cannot read its configuration again")
        return self.file

    async def propose(
        self, patch: Mapping[str, object], secrets: Mapping[str, str]
    ) -> api.Proposed:
        """Checks a patch of the configuration. Raises InvalidParams if it cannot be written."""
        try:
            proposal = await to_thread.run_sync(self._make, patch, secrets)
        except CannotEdit as error:
            raise InvalidParams(str(error), [("patch", str(error))]) from error
        self._known[proposal.hash] = proposal
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        name = proposal.inputs.name(proposal.path)
        return api.Proposed(
            diff=editing.difference(proposal.before, proposal.after, name),
            errors=[build(api.ConfigError, one) for one in proposal.errors],
            hash=proposal.hash,
        )

    def _make(self, patch: Mapping[str, object], secrets: Mapping[str, str]) -> Proposal:
        file = self._file
        path, inputs = self._origin or file.path() or file.default, file.inputs()
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
        """Writes and reloads a proposal. Raises Conflict if the file has changed, InvalidParams if it is not valid."""
        async with self._turn:
            proposal = self._known.get(hash_)
            if proposal is None:
                raise Conflict("there is no such proposal; propose the change again")
            _refuse(proposal.errors)
            undo = await to_thread.run_sync(_write, proposal)
            done = await self._reload()
            if done.errors:  # such as a plugin that cannot be loaded
                await to_thread.run_sync(undo)
                await self._reload()
                _refuse(done.errors)
            del self._known[hash_]
            return api.Applied(generation=done.generation)


def _refuse(errors: Sequence[ConfigProblem] | Sequence[api.ConfigError]) -> None:
    if errors:
        problems = [(one.key or "patch", f"{one.message}; {one.fix}") for one in errors]
        raise InvalidParams("the configuration would not be valid", problems)


def _write(proposal: Proposal) -> Callable[[], None]:
    """Writes secrets, then the file. Returns the function that undoes both. Raises Conflict."""
    was_there = proposal.path.exists()
    try:
        if editing.read_text(proposal.path, proposal.inputs) != proposal.before:
            raise CannotEdit("the file has changed; propose the change again")
        undo = [write_secret(proposal.inputs.home, *one) for one in proposal.secrets.items()]
        if proposal.after != proposal.before:
            editing.save(proposal.path, proposal.before, proposal.after, proposal.inputs)
    except CannotEdit as error:
        raise Conflict(str(error)) from error

    def revert() -> None:
        if proposal.after != proposal.before:
            editing.restore(proposal.path, proposal.before if was_there else None)
        for one in undo:
            one()

    return revert
