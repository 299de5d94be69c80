"""How many files this process may have open: a connection is one."""

import resource


def allow_open_files() -> None:
    """As many as the system lets us have without asking anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
