"""The configuration as a verb reads it, and as it changes it: shown as a difference, agreed to, then written whole."""

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from gateway.cli.command import CliContext
from gateway.cli.link import data_dir
from gateway.config import editing
from gateway.config.environment import read_environment
from gateway.config.load import find_file, is_named_file, read
from gateway.config.values import (
    BundledPlugin,
    GatewayConfig,
    Known,
    Overrides,
    Preset,
    Surroundings,
)
from gateway.control.policy import DECISION_TREES
from gateway.control.rules import CORE, problems_of
from gateway.domain.errors import GatewayError
from gateway.host.clock import SystemClock
from gateway.host.files import shipped_folder
from gateway.providers.prices import (
    DEFAULT_MODELS,
    PRESETS,
    context_window,
    is_priced,
    output_limit,
    why_no_thinking,
)
from gateway.store.opening import read_owner

# The plugins that ship with the gateway, and what each cannot work without.
BUNDLED: dict[str, tuple[str, ...]] = {
    "echo": (),
    "calc": (),
    "time": ("host_function:clock",),
    "notes": ("store:notes",),
    "search_code": ("host_function:folder",),
    "fetch": (),
    "telegram": ("http:api.telegram.org",),
    "webhook": (),
    "slack": ("http:slack.com", "http:wss-primary.slack.com", "http:wss-backup.slack.com"),
    "discord": ("http:discord.com", "http:gateway.discord.gg", "host_function:clock"),
    "whatsapp": ("http:graph.facebook.com",),
    "matrix": (),
}
# By what the callers of webhooks prove who they are, and whether the adapter is called by default.
PROOFS: dict[str, tuple[tuple[str, ...], bool]] = {
    "telegram": (("secrets.webhook_secret",), False),
    "webhook": (("secrets.secret",), True),
    "slack": (("secrets.signing_secret",), True),
    "discord": (("config.public_key",), False),
    "whatsapp": (("secrets.app_secret",), True),
    "matrix": (("secrets.hs_token",), True),
}
# Names in `config` without which an adapter knows no mention.
MENTION_KEYS = {"telegram": "username"}
# Those of a start without any agent: whatever they are granted is harmless.
USUAL = frozenset({"echo", "calc", "time", "notes"})


@cache
def known() -> Known:
    presets = {
        name: Preset(preset.wire, preset.base_url, preset.key_env, DEFAULT_MODELS.get(name))
        for name, preset in PRESETS.items()
    }
    folder = shipped_folder("plugins")
    bundled = {
        name: _bundled(folder / name / "tool.wasm", name, needs) for name, needs in BUNDLED.items()
    }
    trees = tuple(sorted(path.stem for path in shipped_folder("agent/trees").glob("*.bt")))
    decisions = ("default", *(point.name for point in entry_points(group=DECISION_TREES)))
    return Known(
        presets,
        bundled,
        context_window,
        output_limit,
        why_no_thinking,
        trees,
        decisions,
        CORE,
        problems_of,
        has_mcp=find_spec("mcp") is not None,
        is_priced=lambda provider, model: is_priced(provider, model, SystemClock().now()),
    )


def _bundled(file: Path, name: str, needs: tuple[str, ...]) -> BundledPlugin:
    proofs, is_called = PROOFS.get(name, ((), False))
    return BundledPlugin(
        file,
        needs,
        is_usual=name in USUAL,
        proofs=proofs,
        is_called=is_called,
        mention_key=MENTION_KEYS.get(name),
    )


# -- reading


def configured(context: CliContext, *, port: int | None = None) -> GatewayConfig:
    """Raises ConfigInvalid with every problem."""
    return read(config_path(context), surroundings(context, port=port)).config


def config_path(context: CliContext) -> Path | None:
    """The file that counts; None for a start without one."""
    return find_file(
        context.config_path, environment=read_environment(), home=Path.home(), cwd=Path.cwd()
    )


def usual_path() -> Path:
    """Where the file is looked for and made, if none is named."""
    return Path.home() / ".config" / "exogate" / "config.toml"


def surroundings(context: CliContext, *, port: int | None = None) -> Surroundings:
    environment = read_environment()
    is_named = is_named_file(context.config_path, environment)
    overrides = Overrides(context.data_dir, port)
    return Surroundings(environment, Path.home(), Path.cwd(), known(), overrides, is_named)


# -- writing

agree = click.option("--yes", "-y", is_flag=True, help="Agree without being asked.")


class NotAgreed(GatewayError):
    """Nothing was written."""

    code = "not_agreed"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the configuration file: in force, else the usual one, which is yet to be made."""

    context: CliContext
    path: Path
    around: Surroundings
    before: str

    @classmethod
    def begin(cls, context: CliContext) -> "Edit":
        """Raises ConfigInvalid if the file is no TOML."""
        around = surroundings(context)
        path = (config_path(context) or usual_path()).absolute()
        return cls(context, path, around, editing.current(path, around))

    @property
    def name(self) -> str:
        return self.around.name(self.path)

    def difference(self, after: str) -> str:
        return editing.difference(self.before, after, self.name)

    def checked(self, after: str) -> GatewayConfig:
        """The configuration that it would be. Raises ConfigInvalid."""
        return editing.checked(after, self.path, self.around)

    def tell(self, *lines: str) -> None:
        """For whoever reads: with --json, stdout is for programs."""
        click.echo("\n".join(lines), err=self.context.json)

    def agreed(self, question: str, *, yes: bool) -> None:
        """Raises NotAgreed."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise NotAgreed("nothing was written: not a terminal; rerun with --yes")
        if not click.confirm(question, default=False, err=True):
            raise NotAgreed("nothing was written")

    def save(self, after: str) -> None:
        """Raises ConfigInvalid: nothing is written that could not be used."""
        editing.save(self.path, self.before, after, self.around)

    def written(
        self,
        after: str,
        *notes: str,
        question: str = "Write it?",
        nothing: str,
        yes: bool,
        **facts: Any,
    ) -> None:
        """Shows the change with `notes` before it, asks, writes it and says so, or says why there is nothing to do."""
        is_changed = after != self.before
        if is_changed:
            self.tell(*notes, self.difference(after))
            self.agreed(question, yes=yes)
            self.save(after)
            self.tell(f"{self.name} was written. {self.effect}")
        else:
            self.tell(f"{nothing}; nothing changed")
        if self.context.json:
            self.context.tell({**facts, "config": str(self.path), "changed": is_changed})

    @property
    def effect(self) -> str:
        owner = read_owner(data_dir(self.context))
        if owner is None:
            return "It takes effect at the next `exogate run`."
        return f"It takes effect after a restart of the running gateway (process {owner.pid})."
