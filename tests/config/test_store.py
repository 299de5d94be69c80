"""[store]: a database here, or a server with its credentials."""

from dataclasses import replace

import pytest

from gateway.config.problems import ConfigInvalid
from gateway.domain.ids import Secret
from tests.config.arena import Arena


def test_a_server_is_named_with_its_place_and_a_secret_password(arena: Arena) -> None:
    store = (
        replace(arena, environment={"STORE_PASSWORD": "hunter2"})
        .load(
            '[store]\nurl = "wss://db.example:8000/"\nnamespace = "n"\ndatabase = "d"\n'
            'username = "exogate"\npassword = "${env:STORE_PASSWORD}"'
        )
        .store
    )

    assert store.is_shared
    assert (store.url, store.namespace, store.database) == ("wss://db.example:8000", "n", "d")
    assert (store.username, store.password) == ("exogate", Secret("hunter2"))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ws://",
            "wss:",
            "ws://db:8000?x",
            "ws://[::1",
            "ws://user:pw@db:8000",
            "ws://db:8000/rpc",
        ),
        *("ws://db:99999", "ws://db:", "ws://d b", "wss://[::g]:8000", "ws://1.2.3:8000"),
    ],
)
def test_an_address_that_names_no_store_is_an_error_at_its_place(arena: Arena, url: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        arena.load(f'[store]\nurl = "{url}"')

    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == ("store.url", 2)
    assert "ws://HOST:PORT" in problem.fix


@pytest.mark.parametrize(("there", "missing"), [("username", "password"), ("password", "username")])
def test_half_of_the_credentials_is_an_error(arena: Arena, there: str, missing: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        arena.load(f'[store]\nurl = "ws://db"\n{there} = "${{env:HOME}}"')

    assert [(one.key, one.line) for one in caught.value.problems][0] == (f"store.{there}", 3)
    assert f'"{missing}" is missing' in caught.value.problems[0].message
