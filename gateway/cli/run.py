"""`exogate run`: the gateway in the foreground."""

import sys
from collections.abc import Sequence
from functools import partial

import anyio
import click

from gateway.app import running as app
from gateway.app.proposals import ConfigFile
from gateway.cli.command import CliContext
from gateway.cli.configuration import config_path, load_config, read_inputs, usual_path
from gateway.config.environment import pop_service_variables
from gateway.config.secrets import secrets_in
from gateway.config.values import GatewayConfig
from gateway.domain.channels import ChannelStatus
from gateway.domain.plugins import PluginInfo
from gateway.domain.text import one_line
from gateway.domain.version import VERSION
from gateway.host.logs import detach_streams, logging_to
from gateway.host.notify import Notifier
from gateway.host.process import allow_open_files, hold_hangup


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on this port; 0 takes any free port."
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Start even if accepted messages are missing from the store.",
)
@click.pass_obj
def run(context: CliContext, port: int | None, *, accept_loss: bool) -> None:
    hold_hangup()
    detach_streams()
    notify = Notifier.of(pop_service_variables())
    config = load_config(context, port=port)
    allow_open_files()
    observability = config.observability

    def ready(running: app.Running) -> None:
        click.echo("\n".join(map(one_line, banner(running))))
        sys.stdout.flush()
        notify.ready(f"serving at {running.url}")

    inputs = partial(read_inputs, context, port=port)
    file = ConfigFile(partial(config_path, context), usual_path(), inputs)

    async def serve() -> None:
        await app.run(
            config,
            version=VERSION,
            ready=ready,
            process=app.ProcessContext(logs, notify, file),
            accept_loss=accept_loss,
        )

    with logging_to(sys.stderr, observability.log_level, observability.log_format) as logs:
        logs.hide(secrets_in(config))
        anyio.run(serve, backend_options={"use_uvloop": sys.platform != "win32"})


def banner(running: app.Running) -> list[str]:
    """Returns the lines that an operator sees after the start."""
    config = running.config
    lines = [
        f"exogate {VERSION}   {_mode(config)}",
        "",
        f"  WebSocket  {running.url.replace('http', 'ws', 1)}/ws",
        f"  HTTP API   {running.url}/api/chat",
        f"  Data       {config.gateway.data_dir}   ({_store(config)})",
        *(f"  Agent      {line}" for line in _agents(config)),
        *(f"  Channels   {line}" for line in _channels(running.channels)),
        *(f"  Plugins    {line}" for line in _plugins(running.plugins)),
    ]
    daily = config.budgets.daily.tokens
    if daily is not None and len(config.agents) < 3:
        lines.append(f"  Budget     {daily:,} tokens a day   (exogate budget set daily N)")
    if running.resumed:
        lines.append(f"  Resumed    {running.resumed} unanswered messages of the last run")
    return [
        *lines,
        "",
        "  Next       exogate chat     talk here in the terminal",
        "  Ctrl+C stops.",
    ]


def _mode(config: GatewayConfig) -> str:
    if config.origin is not None:
        return f"configuration {config.origin}"
    if not config.providers:
        return "demo mode: no config file, no API key needed"
    name = next(iter(config.providers))
    return f"no config file: provider {name} (key from {config.key_origins.get(name, 'config')})"


def _store(config: GatewayConfig) -> str:
    names = {"embedded": "embedded SQLite", "memory": "in memory: lost on exit"}
    return names.get(config.store.url, f"store: {config.store.url}")


def _plugins(plugins: Sequence[PluginInfo]) -> list[str]:
    """Lists the loaded, compiling and refused plugins."""
    loaded = ", ".join(plugin.name for plugin in plugins if plugin.state == "loaded")
    refused = [plugin for plugin in plugins if plugin.state == "refused"]
    coming = ", ".join(plugin.name for plugin in plugins if plugin.state == "compiling")
    lines = [f"{loaded}   (sandboxed)"] if loaded else []
    if coming:
        lines.append(f"compiling: {coming}   (their tools follow)")
    if len(refused) == 1:
        lines.append(f"refused: {refused[0].name}: {refused[0].why}")
    elif refused:
        names = ", ".join(plugin.name for plugin in refused)
        lines.append(f"refused: {names}   (see exogate plugin list)")
    return lines


def _channels(channels: Sequence[ChannelStatus]) -> list[str]:
    """Lists the open channels, then the others with the reason."""
    opened = ", ".join(one.name for one in channels if not one.why)
    others = [f"{one.state}: {one.name}: {one.why}" for one in channels if one.why]
    return [opened, *others] if opened else others


def _agents(config: GatewayConfig) -> list[str]:
    shown = [
        f"{agent.id}   {agent.provider}/{agent.model}"
        + (f" · tools {', '.join(agent.tools)}" if agent.tools else "")
        + ("   (scripted answers, no AI)" if agent.provider == "demo" else "")
        for agent in config.agents
    ]
    return shown if len(shown) <= 3 else [*shown[:2], f"and {len(shown) - 2} more"]
