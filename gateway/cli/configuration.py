"""Reads the configuration for verbs, and edits it: a verb shows the difference, asks for consent, then writes the file
atomically."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from gateway.cli.command import CliContext, NotAllowed, Unreachable
from gateway.cli.link import ask, data_dir
from gateway.config import editing
from gateway.config.environment import read_environment
from gateway.config.load import find_file, is_named_file, read
from gateway.config.secrets import write_secret
from gateway.config.values import (
    BundledPlugin,
    GatewayConfig,
    Inputs,
    Known,
    Overrides,
    Preset,
)
from gateway.control.policy import DECISION_TREES
from gateway.control.rules import CORE, check_rule
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


@cache
def known_names() -> Known:
    """Returns the names and facts of this installation that a configuration may refer to."""
    presets = {
        name: Preset(preset.wire, preset.base_url, preset.key_env, DEFAULT_MODELS.get(name))
        for name, preset in PRESETS.items()
    }
    folder = shipped_folder("plugins")
    shipped = tomllib.loads((folder / "bundled.toml").read_text(encoding="utf-8"))
    bundled = {
        name: BundledPlugin(folder / name / "tool.wasm", **about) for name, about in shipped.items()
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
        check_rule,
        has_mcp=find_spec("mcp") is not None,
        has_surrealdb=find_spec("cbor2") is not None,
        has_nats=find_spec("nats") is not None,
        has_otel=bool(find_spec("opentelemetry") and find_spec("opentelemetry.proto")),
        is_priced=lambda provider, model: is_priced(provider, model, SystemClock().now()),
    )


# -- reading


def load_config(context: CliContext, *, port: int | None = None) -> GatewayConfig:
    """Reads the configuration. Raises ConfigInvalid with all problems."""
    return read(config_path(context), read_inputs(context, port=port)).config


def config_path(context: CliContext) -> Path | None:
    """Returns the configuration file in use, or None if there is none."""
    return find_file(
        context.config_path, environment=read_environment(), home=Path.home(), cwd=Path.cwd()
    )


def usual_path() -> Path:
    """Returns the default path of the configuration file."""
    return Path.home() / ".config" / "exogate" / "config.toml"


def read_inputs(context: CliContext, *, port: int | None = None) -> Inputs:
    environment = read_environment()
    is_named = is_named_file(context.config_path, environment)
    overrides = Overrides(context.data_dir, port)
    return Inputs(environment, Path.home(), Path.cwd(), known_names(), overrides, is_named)


# -- writing

RELOAD_S = 120.0  # a reload takes 30 s at most, and may wait for another one
yes_option = click.option("--yes", "-y", is_flag=True, help="Agree without being asked.")


class NotConfirmed(GatewayError):
    """The operator did not agree; nothing was written."""

    code = "not_agreed"


class ReloadRefused(GatewayError):
    """The running gateway cannot use a valid configuration; the file was not changed."""

    code = "config_error"

    def __init__(self, errors: Sequence[Mapping[str, str]]) -> None:
        why = "; ".join(f"{one['message']}; {one['fix']}" for one in errors)
        super().__init__(f"nothing was changed: the running gateway cannot use it: {why}")


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the configuration file in use, or of a new one at the default path."""

    context: CliContext
    path: Path
    inputs: Inputs
    before: str

    @classmethod
    def begin(cls, context: CliContext) -> "Edit":
        """Begins an edit. Raises ConfigInvalid if the file is not TOML."""
        inputs = read_inputs(context)
        path = (config_path(context) or usual_path()).absolute()
        return cls(context, path, inputs, editing.read_text(path, inputs))

    @property
    def name(self) -> str:
        return self.inputs.name(self.path)

    def difference(self, after: str) -> str:
        return editing.difference(self.before, after, self.name)

    def validate(self, after: str) -> GatewayConfig:
        """Returns the configuration of a new text. Raises ConfigInvalid."""
        return editing.check_text(after, self.path, self.inputs)

    def with_secret(self, name: str, secret: str) -> "Edit":
        """Returns an edit that also writes a secret file."""
        return replace(self, inputs=replace(self.inputs, pending={name: secret}))

    def show(self, *lines: str) -> None:
        """Prints lines for people; with --json they go to stderr."""
        click.echo("\n".join(lines), err=self.context.json)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Asks for consent. Raises NotConfirmed."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise NotConfirmed("nothing was written: not a terminal; rerun with --yes")
        if not click.confirm(question, default=False, err=True):
            raise NotConfirmed("nothing was written")

    def save(self, after: str) -> None:
        """Writes secrets and the file. Raises ConfigInvalid."""
        for name, secret in self.inputs.pending.items():
            write_secret(self.inputs.home, name, secret)
        editing.save(self.path, self.before, after, self.inputs)

    def apply(
        self,
        after: str,
        *notes: str,
        question: str = "Write it?",
        nothing: str,
        yes: bool,
        **facts: Any,
    ) -> None:
        """Shows `notes` and the change, asks, and writes it; prints `nothing` if there is no change."""
        is_changed = after != self.before or bool(self.inputs.pending)
        if is_changed:
            self.show(*notes, self.difference(after))
            editing.require_better(self.before, after, self.path, self.inputs)
            self.confirm(question, yes=yes)
            effect = self.save_and_reload(after)
            self.show(f"{self.name} was written. {effect}")
        else:
            self.show(f"{nothing}; nothing changed")
        if self.context.json:
            self.context.print_json({**facts, "config": str(self.path), "changed": is_changed})

    def save_and_reload(self, after: str) -> str:
        """Writes the file, reloads a running gateway, and returns a sentence about the effect.

        Raises ReloadRefused if the gateway cannot use it; the old file is restored.
        """
        owner = read_owner(data_dir(self.context))
        if owner is None:
            self.save(after)
            return "It takes effect at the next `exogate run`."
        existed, gateway = self.path.exists(), f"The running gateway (process {owner.pid})"
        try:
            was_valid = not ask(self.context, "status").get("config", {}).get("errors")
            self.save(after)
            result = ask(self.context, "config.reload", {}, RELOAD_S)
        except (Unreachable, NotAllowed) as error:
            if editing.read_text(self.path, self.inputs) != after:
                self.save(after)
            return f"{gateway} was not reloaded: {error}"
        if result["errors"] and was_valid:
            editing.restore(self.path, self.before if existed else None)
            ask(self.context, "config.reload", {}, RELOAD_S)
            raise ReloadRefused(result["errors"])
        later = ", ".join(result["restart_needed"])
        rest = f"; after a restart: {later}" if later else ""
        return f"{gateway} uses it as generation {result['generation']}{rest}."
