"""Reload in two phases: the whole next generation is made aside, then swapped in; a bad one changes nothing."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from gateway.api import operating as api
from gateway.api.declarations import build as as_value
from gateway.api.errors import InvalidParams
from gateway.app.generation import Look, build, files_changed, look_at
from gateway.app.shared import Shared
from gateway.app.working import GenerationRefused, Working, finding, prepared
from gateway.config.access import note_start
from gateway.config.changes import changes, need_restart, with_start_values
from gateway.config.document import build_error
from gateway.config.load import LoadedConfig
from gateway.config.problems import Code, ConfigInvalid, ConfigProblem, dotted
from gateway.config.values import GatewayConfig
from gateway.domain.errors import GatewayError
from gateway.domain.supervision import contain, retry_store
from gateway.host.files import stamps_of
from gateway.host.notify import SILENT, Notifier

log = logging.getLogger(__name__)

WITHIN_S = 30.0  # a generation is made
LOOK_EVERY_S = 1.0
QUIET_S, LONGEST_UNREST_S = 0.3, 2.0  # of files that are being written
GONE_S = 2.0  # before a file that vanished counts as gone
UNFINISHED_S = 1.0  # so young a file that is no TOML is looked at once more
# A file changed, or another gateway has reloaded: no caller waits for such a reload.
BY_ITSELF = frozenset({"watch", "hint"})
NOTICED_S = 5.0  # so long a call tells of what the watch noticed just before it

ReadConfig = Callable[[Path | None], LoadedConfig]


class Target(Protocol):
    """What generations are swapped in."""

    now: Working
    version: str

    async def serve_mcp(self, config: GatewayConfig) -> None: ...

    def swap(self, new: Working) -> None: ...

    async def load_channels(self) -> None: ...


@dataclass(slots=True)
class Reloader:
    """One reload at a time, in a task of the process: whoever asked may be gone before its end."""

    shared: Shared
    read: ReadConfig
    look: InitVar[Look]  # at the files of the generation in force
    target: Target
    observe: Callable[[GatewayConfig], None] = lambda config: None  # sets the log up
    notify: Notifier = SILENT
    tell: Callable[[], object] = lambda: None  # other gateways look at their files too
    problems: tuple[ConfigProblem, ...] = ()  # of the configuration as it is now
    restart_needed: Sequence[str] = ()
    _booted: GatewayConfig = field(init=False)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)
    _told: str = ""  # the digest of the last bad one that is in the log
    _noticed: tuple[float, Sequence[str]] = (
        float("-inf"),
        (),
    )  # by the watch, and told to no caller
    _seen: Look = field(init=False)

    def __post_init__(self, look: Look) -> None:
        self._seen = look
        self._booted = self.target.now.made.config
        self._count(is_good=True)

    def state(self) -> api.ConfigState:
        """For `status`."""
        origin = self.target.now.made.config.origin
        return api.ConfigState(
            path=None if origin is None else str(origin),
            errors=[as_value(api.ConfigError, one) for one in self.problems],
            restart_needed=list(self.restart_needed),
        )

    async def reload(
        self, *, dry_run: bool = False, path: str | None = None, by: str = "call"
    ) -> api.Reloaded:
        """Comes back when the generation is in force, or is refused. Raises InvalidParams."""
        if path is not None and not dry_run:
            why = "only a dry run reads another file"
            raise InvalidParams(f"path: {why}", [("path", why)])
        done, results = anyio.Event(), list[api.Reloaded]()

        async def work() -> None:
            try:
                async with self._turn:
                    file = None if path is None else Path(path)
                    results.append(await (self._tried(file) if dry_run else self._reload(by)))
            finally:
                done.set()

        self.shared.group.start_soon(contain, "reload", work)
        await done.wait()
        if by not in BY_ITSELF and not dry_run:
            self.tell()
        if not results:
            raise GatewayError("the reload failed by a defect; nothing was changed, see the log")
        return results[0]

    # -- the two phases

    async def _tried(self, path: Path | None) -> api.Reloaded:
        """What would be."""
        plan = await self._plan(path)
        if plan.new is not None:
            plan.new.leave(self.shared)
        return self._result(plan.changed, plan)

    async def _reload(self, by: str) -> api.Reloaded:
        clock, before = self.shared.clock, self.target.now
        self.notify.reloading()
        began, plan = clock.monotonic(), await self._plan(None)
        if by in BY_ITSELF and plan.is_unfinished(self._booted.origin, clock.now()):
            await clock.sleep(UNFINISHED_S)
            plan = await self._plan(None)
        self._seen, self.problems, self.restart_needed = plan.look, plan.problems, plan.restart
        self._count(is_good=not plan.problems)
        if plan.problems:
            self._tell_refused(plan)
            self.notify.ready(
                f"generation {before.number}; the configuration is bad, see `exogate status`"
            )
            return self._result((), plan)
        self._told = ""
        if plan.new is not None:
            self.observe(plan.new.made.config)
            await self.target.serve_mcp(plan.new.made.config)
            self.target.swap(plan.new)
            await self.target.load_channels()
            took_ms = round((clock.monotonic() - began) * 1000, 1)
            told = {"changed": list(plan.changed), "by": by, "took_ms": took_ms}
            log.info("config_reloaded", extra={"generation": plan.new.number, **told})
            await self._note(before, plan.new)
        elif by not in BY_ITSELF:
            log.info("config_unchanged", extra={"generation": before.number, "by": by})
        self.notify.ready(f"generation {self.target.now.number}")
        return self._result(self._news(by, plan.changed), plan)

    def _news(self, by: str, changed: Sequence[str]) -> Sequence[str]:
        """Also what the watch noticed just before somebody called."""
        now = self.shared.clock.monotonic()
        if by == "watch":
            self._noticed = (now, changed)
            return changed
        at, noticed = self._noticed
        self._noticed = (float("-inf"), ())
        return changed or (noticed if now - at < NOTICED_S else ())

    def _result(self, changed: Sequence[str], plan: "ReloadPlan") -> api.Reloaded:
        return api.Reloaded(
            generation=self.target.now.number,
            changed=list(changed),
            restart_needed=list(plan.restart),
            errors=[as_value(api.ConfigError, one) for one in plan.problems],
        )

    async def _plan(self, path: Path | None) -> "ReloadPlan":
        """Reads, compares, and makes the next generation, all of it beside the one in force."""
        before, origin = self.target.now, path or self._booted.origin
        look = await to_thread.run_sync(look_at, before.made.config)
        try:
            loaded = await to_thread.run_sync(self.read, origin)
        except ConfigInvalid as error:
            return ReloadPlan(look, self.restart_needed, problems=error.problems)
        config = with_start_values(self._booted, loaded.config)
        restart = need_restart(self._booted, loaded.config)
        look = await to_thread.run_sync(look_at, config, look)
        changed = [*changes(before.made.config, config), *files_changed(before.look, look)]
        if not changed:
            return ReloadPlan(look, restart)
        if config.rule_folder and config.rule_folder.problems:
            return ReloadPlan(look, restart, problems=config.rule_folder.problems)
        try:
            with anyio.fail_after(WITHIN_S):
                made = await to_thread.run_sync(build, config)
                new = await prepared(made, self.shared, before, look=look)
        except GenerationRefused as error:
            findings = error.findings
        except TimeoutError:
            findings = [finding((), f"it was not ready within {WITHIN_S:g} s", "see the log")]
        except GatewayError as error:
            findings = [finding((), str(error), "correct it, then reload")]
        else:
            return ReloadPlan(look, restart, tuple(dict.fromkeys(changed)), new=new)
        return ReloadPlan(look, restart, problems=build_error(findings, loaded.document).problems)

    # -- what is told of it

    def _count(self, *, is_good: bool) -> None:
        figures = self.shared.reports.figures
        figures.reload_successful.set((), int(is_good))
        if is_good:
            figures.reload_timestamp.set((), self.shared.clock.now().timestamp())

    def _tell_refused(self, plan: "ReloadPlan") -> None:
        """Once, however often the same is tried."""
        digest = sha256(repr([*plan.look.digests.values(), plan.problems]).encode()).hexdigest()
        if digest == self._told:
            return
        self._told = digest
        for one in plan.problems:
            where = f"{one.source}:{one.line}:{one.column}" if one.line else one.source
            told = {"where": where, "code": one.code, "key": one.key, "why": one.message}
            log.error("config_refused", extra={"generation": self.target.now.number, **told})
        trees = {dotted(key): path for path, key in plan.look.keys.items() if key[-1] == "tree"}
        for one in plan.problems:
            if one.key in trees:
                self.shared.tell("tree.refused", {"path": trees[one.key], "why": one.message})

    async def _note(self, before: Working, new: Working) -> None:
        """In the log of changes of authority, and on the bus."""
        made, audit, now = new.made, self.shared.stores.audit, self.shared.clock.now()
        for path in new.plans.files:
            if new.look.digests.get(Path(path)) != before.look.digests.get(Path(path)):
                self.shared.tell("tree.reloaded", {"path": path, "tree": new.plans.name(path)})
        told = (audit, made.config, new.plugins.infos, self.target.version, now)
        await retry_store(self.shared.clock, note_start, *told)

    # -- the watch

    async def watch(self) -> None:
        """Reloads what has changed, until cancelled. A look costs a handful of `stat` calls, which is less than
        a watcher's thread, and works on every file system."""
        while True:
            await self.shared.clock.sleep(LOOK_EVERY_S)
            config = self.target.now.made.config
            if config.gateway.watch and await self._has_changed(config):
                await self.reload(by="watch")

    async def _has_changed(self, config: GatewayConfig) -> bool:
        """Looked at once whoever writes the files is done. What was only touched has not changed."""
        clock, seen = self.shared.clock, self._seen
        now = await to_thread.run_sync(
            stamps_of, seen.stamps
        )  # a folder changes with what is in it
        until = clock.monotonic() + LONGEST_UNREST_S
        while now != seen.stamps:
            is_gone = any(now.get(path) is None for path in seen.stamps if seen.stamps[path])
            await clock.sleep(GONE_S if is_gone else QUIET_S)
            before, now = now, await to_thread.run_sync(stamps_of, seen.stamps)
            if now == before or clock.monotonic() >= until:
                break
        if now == seen.stamps:
            return False
        look = await to_thread.run_sync(look_at, config)
        if look.digests == seen.digests and self._seen is seen:
            self._seen = look
        return look.digests != seen.digests


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What a reload would do: nothing, swap in the `new` generation, or tell of the problems."""

    look: Look
    restart: Sequence[str]
    changed: Sequence[str] = ()
    problems: tuple[ConfigProblem, ...] = ()
    new: Working | None = None

    def is_unfinished(self, origin: Path | None, now: datetime) -> bool:
        """Whether its file may be half written."""
        stamp = self.look.stamps.get(origin or Path())
        is_young = stamp is not None and now.timestamp() - stamp[1] / 1e9 < UNFINISHED_S
        return is_young and any(one.code == Code.SYNTAX for one in self.problems)
