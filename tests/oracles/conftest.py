"""A gateway as a process of its own, in front of a model that says what a test wants."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from tests.fakes.gateway import Setup, spawn
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server

TOKEN = "the-token-of-the-oracles"  # of a gateway that lives for a minute
NODE = Path(__file__).parent / "node_modules" / ".bin" / "node"


def echo(asked: Asked) -> Reply:
    return Reply(["to ", asked.last_text])


@dataclass
class Site:
    """`script` is what the model answers by from now on."""

    url: str
    token: str
    model: ModelServer
    script: Callable[[Asked], Reply] = echo
    pid: int = 0


@pytest.fixture(autouse=True)
def tidy() -> None:
    """Programs of others may leave tasks behind."""


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop() -> None:
    """Programs of others may block their own loops."""


OpenSite = Callable[..., AbstractContextManager[Site]]


@contextmanager
def opened(folder: Path, token: str = TOKEN, **more: object) -> Iterator[Site]:
    """`more` as in Setup. Without a token whoever comes from this machine is let in."""
    secured = {"gateway": f'token = "{token}"'} if token else {}
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            scripted_server(lambda asked: site.script(asked))
        ) as model,
    ):
        site = Site("", token, model)
        config = portal.call(Setup(model.url, **{**secured, **more}).written, folder)
        command = spawn(config)
        try:
            if not portal.call(command.ready):
                raise AssertionError(portal.call(command.said).decode(errors="replace")[-2000:])
            site.url, site.pid = command.url, command.process.pid
            yield site
        finally:
            command.kill()
            portal.call(command.exit_code)
            command.process.stdout.close()


@pytest.fixture
def open_site(tmp_path: Path) -> OpenSite:
    """For a gateway that is configured otherwise: `with open_site(token="", rest=...) as site`."""
    return partial(opened, tmp_path)


@pytest.fixture(scope="module")
def usual_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with opened(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def site(usual_site: Site) -> Site:
    """One gateway for all tests of a file; its model answers each of them by `echo` at first."""
    usual_site.script = echo
    return usual_site
