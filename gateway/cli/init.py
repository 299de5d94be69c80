"""`exogate init`: writes a folder with a configuration, a soul, and the schema for editors."""

import json
import os
from pathlib import Path

import click

from gateway.cli.command import CliContext
from gateway.config.schema import json_schema
from gateway.config.toml import CannotEdit
from gateway.host.files import shipped_folder

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
