"""The configuration as a verb reads it, and as it changes it: shown as a difference, agreed to, then written whole."""

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
def known() -> Known:
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


def configured(context: CliContext, *, port: int | None = None) -> GatewayConfig:
    """Raises ConfigInvalid with every problem."""
    return read(config_path(context), read_inputs(context, port=port)).config


def config_path(context: CliContext) -> Path | None:
    """The file that counts; None for a start without one."""
    return find_file(
        context.config_path, environment=read_environment(), home=Path.home(), cwd=Path.cwd()
    )


def usual_path() -> Path:
    """Where the file is looked for and made, if none is named."""
    return Path.home() / ".config" / "exogate" / "config.toml"


def read_inputs(context: CliContext, *, port: int | None = None) -> Inputs:
    environment = read_environment()
    is_named = is_named_file(context.config_path, environment)
    overrides = Overrides(context.data_dir, port)
    return Inputs(environment, Path.home(), Path.cwd(), known(), overrides, is_named)


# -- writing

RELOAD_S = 120.0  # one reload takes 30 s at most, and another one may be at work
agree = click.option("--yes", "-y", is_flag=True, help="Agree without being asked.")


class NotAgreed(GatewayError):
    """Nothing was written."""

    code = "not_agreed"


class NotTaken(GatewayError):
    """Nothing was written: it is valid, and the running gateway cannot use it."""

    code = "config_error"

    def __init__(self, errors: Sequence[Mapping[str, str]]) -> None:
        told = "; ".join(f"{one['message']}; {one['fix']}" for one in errors)
        super().__init__(f"nothing was changed, since the running gateway cannot use it: {told}")


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the configuration file: in force, else the usual one, which is yet to be made."""

    context: CliContext
    path: Path
    inputs: Inputs
    before: str

    @classmethod
    def begin(cls, context: CliContext) -> "Edit":
        """Raises ConfigInvalid if the file is no TOML."""
        inputs = read_inputs(context)
        path = (config_path(context) or usual_path()).absolute()
        return cls(context, path, inputs, editing.read_text(path, inputs))

    @property
    def name(self) -> str:
        return self.inputs.name(self.path)

    def difference(self, after: str) -> str:
        return editing.difference(self.before, after, self.name)

    def checked(self, after: str) -> GatewayConfig:
        """The configuration that it would be. Raises ConfigInvalid."""
        return editing.check_text(after, self.path, self.inputs)

    def keeping(self, name: str, secret: str) -> "Edit":
        """Writes this file of a secret, too."""
        return replace(self, inputs=replace(self.inputs, pending={name: secret}))

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
        for name, secret in self.inputs.pending.items():
            write_secret(self.inputs.home, name, secret)
        editing.save(self.path, self.before, after, self.inputs)

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
        is_changed = after != self.before or bool(self.inputs.pending)
        if is_changed:
            self.tell(*notes, self.difference(after))
            editing.require_better(self.before, after, self.path, self.inputs)
            self.agreed(question, yes=yes)
            effect = self.take_effect(after)
            self.tell(f"{self.name} was written. {effect}")
        else:
            self.tell(f"{nothing}; nothing changed")
        if self.context.json:
            self.context.tell({**facts, "config": str(self.path), "changed": is_changed})

    def take_effect(self, after: str) -> str:
        """Writes it, has a running gateway take it up, and says what came of it. Raises NotTaken: it cannot be used,
        and the file is as it was."""
        owner = read_owner(data_dir(self.context))
        if owner is None:
            self.save(after)
            return "It takes effect at the next `exogate run`."
        was_there, who = self.path.exists(), f"The running gateway (process {owner.pid})"
        try:
            was_fine = not ask(self.context, "status").get("config", {}).get("errors")
            self.save(after)
            told = ask(self.context, "config.reload", {}, RELOAD_S)
        except (Unreachable, NotAllowed) as error:
            if editing.read_text(self.path, self.inputs) != after:
                self.save(after)
            return f"{who} could not be asked to take it up: {error}"
        if told["errors"] and was_fine:
            editing.restore(self.path, self.before if was_there else None)
            ask(self.context, "config.reload", {}, RELOAD_S)
            raise NotTaken(told["errors"])
        later = ", ".join(told["restart_needed"])
        rest = f"; after a restart: {later}" if later else ""
        return f"{who} is at generation {told['generation']}{rest}."
