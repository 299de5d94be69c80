"""settings.get and settings.set: users, refusals and results."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.api.conversations import OwnLimits
from gateway.api.errors import InvalidParams
from gateway.domain.errors import NotFound
from gateway.domain.ports import Stores
from gateway.domain.sessions import USER_LIMITS, Choosable
from gateway.sessions.worker import SettingsBook
from gateway.web.identity import Principal
from gateway.web.memory import SettingsMethods
from gateway.web.rpc import Handler, handlers_of
from tests.fakes.store import open_memory
from tests.sessions.stage import AGENT
from tests.web.methods.calling import call

ANN = Principal("ann", frozenset({"chat"}))
BOB = Principal("bob", frozenset({"chat", "read", "impersonate"}))
ROOT = Principal("root", frozenset({"admin"}))
USUAL = replace(
    AGENT,
    model="m",
    fallback=replace(AGENT, model="m2"),
    limits=replace(AGENT.limits, max_iterations=9),
)


def settings(stores: Stores) -> Mapping[str, Handler]:
    book = SettingsBook(stores.sessions)
    return handlers_of(SettingsMethods(book, Choosable(USUAL)))


@pytest.mark.requirement("S-001-Config-09", "S-001-Settings-01")
async def test_what_was_set_is_got_and_unknown_keys_are_kept() -> None:
    async with open_memory() as stores:
        first = await call(settings(stores), "settings.get", by=ANN)
        patch = {"token_budget": 2_000, "theme": {"dark": True}, "oracle_model": "m2"}
        told = await call(settings(stores), "settings.set", by=ANN, patch=patch)
        later = await call(settings(stores), "settings.get", by=ANN)

    assert (first["max_iterations"], first["token_budget"], first["oracle_model"]) == (
        9,
        50_000,
        "m",
    )
    assert told == later == {**first, **patch}


async def test_null_takes_a_setting_back() -> None:
    async with open_memory() as stores:
        methods = settings(stores)
        first = await call(methods, "settings.get", by=ANN)
        await call(methods, "settings.set", by=ANN, patch={"max_iterations": 3, "theme": 1})

        told = await call(
            methods, "settings.set", by=ANN, patch={"max_iterations": None, "theme": None}
        )

    assert told == first


@pytest.mark.requirement("S-001-Config-12")
async def test_everything_wrong_is_named_at_once_and_nothing_is_changed() -> None:
    async with open_memory() as stores:
        methods = settings(stores)
        before = await call(methods, "settings.set", by=ANN, patch={"max_iterations": 3})
        patch = {
            "max_iterations": 51,
            "token_budget": 999,
            "timeout_seconds": 20,
            "thinking_enabled": 1,
        }

        with pytest.raises(InvalidParams) as caught:
            await call(methods, "settings.set", by=ANN, patch=patch)

        assert caught.value.problems == (
            ("patch.max_iterations", "has to be a whole number from 1 to 50"),
            ("patch.token_budget", "has to be a whole number from 1000 to 200000"),
            ("patch.thinking_enabled", "has to be true or false"),
        )
        assert await call(methods, "settings.get", by=ANN) == before


@pytest.mark.requirement("S-001-Rel-01")
async def test_anothers_settings_are_for_admins_only() -> None:
    async with open_memory() as stores:
        methods = settings(stores)
        await call(methods, "settings.set", by=ANN, user="ann", patch={"max_iterations": 3})

        for other in ("ann", "nobody"):
            with pytest.raises(NotFound, match=other):
                await call(methods, "settings.get", by=BOB, user=other)
            with pytest.raises(NotFound, match=other):
                await call(methods, "settings.set", by=BOB, user=other, patch={})
        await call(methods, "settings.set", by=ROOT, user="ann", patch={"token_budget": 5_000})
        anns = await call(methods, "settings.get", by=ANN)
        roots = await call(methods, "settings.get", by=ROOT)

    assert (anns["max_iterations"], anns["token_budget"]) == (3, 5_000)
    assert (roots["max_iterations"], roots["token_budget"]) == (9, 50_000)


@pytest.mark.parametrize(
    "wrong", [{}, {"patch": None}, {"patch": []}, {"patch": {}, "x": 1}, {"patch": {}, "user": ""}]
)
async def test_wrong_parameters_are_refused(wrong: dict[str, Any]) -> None:
    async with open_memory() as stores:
        with pytest.raises(InvalidParams):
            await call(settings(stores), "settings.set", by=ANN, **wrong)


def test_a_request_may_tighten_what_a_user_may_set() -> None:
    assert tuple(name for name, _ in OwnLimits.defaults) == USER_LIMITS
