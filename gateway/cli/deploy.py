"""`exogate init` writes a folder with a configuration, a soul, and the schema for editors. `exogate service print` fills
templates with values of the configuration, to run the gateway under a supervisor or to monitor it."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import click

from gateway.cli.command import CliContext
from gateway.cli.configuration import config_path, load_config, usual_path
from gateway.config.schema import json_schema
from gateway.config.secrets import secret_files
from gateway.config.toml import CannotEdit
from gateway.config.values import GatewayConfig
from gateway.domain.version import VERSION
from gateway.host.files import shipped_folder

# --- init ----------------------------------------------------------------------------------------
STARTER = Path(__file__).parent / "starter"


def contents() -> dict[str, str]:
    """Returns the text of each file of the folder."""
    return {
        "config.toml": (STARTER / "config.toml").read_text(encoding="utf-8"),
        "souls/main.md": (shipped_folder("souls") / "default.md").read_text(encoding="utf-8"),
        ".exogate/schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.pass_obj
def init(context: CliContext, folder: Path) -> None:
    written: list[str] = []
    kept: list[str] = []
    for name, text in contents().items():
        path = folder / name
        (written if _create(path, text) else kept).append(str(path))
    context.print_result(
        {"dir": str(folder), "written": written, "kept": kept},
        *(f"{path} was written" for path in written),
        *(f"{path} exists and was not changed" for path in kept),
        "",
        "Next:",
        *([] if folder.resolve() == Path.cwd() else [f"  cd {folder}"]),
        "  exogate run             start the gateway",
        "  exogate chat            talk to it, in another terminal",
        "  exogate provider add anthropic --use     use a real model",
    )


def _create(path: Path, text: str) -> bool:
    """Creates a file. False if it exists. Raises CannotEdit."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise CannotEdit(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        file.write(text)
    return True


# --- service print -------------------------------------------------------------------------------
TEMPLATES = Path(__file__).parent / "deployment"
FILES = {
    "systemd": "exogate.service",
    "launchd": "exogate.plist",
    "docker": "Dockerfile",
    "compose": "compose.yaml",
    "grafana": "grafana.json",
    "alerts": "alerts.yml",
}
MONITORING = frozenset({"grafana", "alerts"})  # templates without values
SYSTEM_CONFIG, SYSTEM_DATA = Path("/etc/exogate/config.toml"), Path("/var/lib/exogate")
DEFAULT_PORT = 7200
GRACE_S = 15  # to stop after the drain
SPARE_FILES = 1_000  # beyond one for each connection
_HIDDEN = (Path("/home"), Path("/root"), Path("/run/user"))  # ProtectHome hides them
_ESCAPES: Mapping[str, Callable[[str], str]] = {
    "systemd": lambda text: text.replace("%", "%%"),
    "launchd": escape,
}
_PLACE = re.compile(r"@([A-Z_]+)@")


@click.group()
def service() -> None: ...


@service.command("print")
@click.option("--systemd", is_flag=True, help="A systemd unit.")
@click.option("--launchd", is_flag=True, help="A launchd agent for macOS.")
@click.option("--docker", is_flag=True, help="A Dockerfile that installs the wheel.")
@click.option("--compose", is_flag=True, help="A Docker Compose file.")
@click.option("--grafana", is_flag=True, help="A Grafana dashboard, as JSON.")
@click.option("--alerts", is_flag=True, help="Alert rules for Prometheus.")
@click.pass_obj
def print_(context: CliContext, /, **asked: bool) -> None:
    kinds = [kind for kind in FILES if asked[kind]]
    if len(kinds) != 1:
        raise click.UsageError(f"give one of {', '.join(f'--{one}' for one in FILES)}")
    (kind,) = kinds
    text = (TEMPLATES / FILES[kind]).read_text(encoding="utf-8")
    if kind in MONITORING:
        click.echo(text, nl=False)
        return
    values = _values(context, load_config(context), kind)
    values = {name: _ESCAPES.get(kind, str)(value) for name, value in values.items()}
    filled = _PLACE.sub(lambda found: values.get(found[1], found[0]), text)
    click.echo(re.sub(r"\n{3,}", "\n\n", filled), nl=False)


def _values(context: CliContext, config: GatewayConfig, kind: str) -> Mapping[str, str]:
    program = Path(sys.prefix) / "bin" / "exogate"
    file, data_dir = (config_path(context) or usual_path()).absolute(), config.gateway.data_dir
    if kind == "systemd":
        data_dir, file = SYSTEM_DATA, (file if context.config_path else SYSTEM_CONFIG)
        interpreter = Path(sys.executable).resolve()  # the interpreter of the script `program`
        for path in (program, interpreter, file):
            if any(path.is_relative_to(folder) for folder in _HIDDEN):
                text = f"the unit cannot see {path} (ProtectHome=yes): move it elsewhere"
                click.echo(text, err=True)
    drain_s = config.gateway.drain_s
    return {
        "EXOGATE": str(program),
        "CONFIG": str(file),
        "DATA_DIR": str(data_dir),
        "CREDENTIALS": _credentials(config.origin),
        "DRAIN_S": f"{drain_s:g}",
        "STOP_S": str(int(drain_s) + GRACE_S),
        "FILES": str(config.gateway.max_connections + SPARE_FILES),
        "PORT": str(config.gateway.port or DEFAULT_PORT),
        "VERSION": VERSION,
    }


def _credentials(config: Path | None) -> str:
    """Returns the LoadCredential lines for the secret files that a configuration refers to."""
    names = secret_files(config.read_text(encoding="utf-8")) if config else ()
    lines = [f"LoadCredential={name}:{SYSTEM_CONFIG.parent}/secrets/{name}" for name in names]
    return "\n".join(lines or [f"# LoadCredential=NAME:{SYSTEM_CONFIG.parent}/secrets/NAME"])
