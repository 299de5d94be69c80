"""Where the files are that ship with the gateway: souls, plugins."""

from pathlib import Path

import gateway


def shipped_folder(name: str) -> Path:
    """In the package once installed; beside it in a checkout."""
    package = Path(gateway.__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name
