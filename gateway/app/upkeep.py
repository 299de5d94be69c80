"""Checks that only a running gateway can make: backups, tokens, budgets, and changes that wait for a restart."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.api.spending import BudgetRow
from gateway.app.doctor import Finding, set_command, unset_command
from gateway.config.problems import KeyPath, dotted
from gateway.config.values import GatewayConfig
from gateway.domain.tokens import CreatedToken

BACKUP_DAYS = 7  # the longest time without a backup
EXPIRES_SOON = timedelta(days=7)
UNUSED = timedelta(days=90)
IMPERSONATE = "impersonate"
NEAR = 0.8  # of a limit
RENEWED = timedelta(days=90)  # the lifetime of a renewed token
UNBOUND = "its budget has no effect while it speaks as others, whose budgets it spends"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The facts to check. `began`: the creation of the store. `restart`: the command that restarts this gateway."""

    config: GatewayConfig
    now: datetime
    began: datetime
    backed_up: datetime | None
    tokens: Sequence[CreatedToken]
    budgets: Sequence[BudgetRow]
    restart_needed: Sequence[str]
    restart: str


def backup(facts: Upkeep) -> Iterator[Finding]:
    """Finds that a backup is due."""
    days = (facts.now - (facts.backed_up or facts.began)).days
    if days < BACKUP_DAYS or facts.config.store.url == "memory":
        return
    what = "the last backup is" if facts.backed_up else "there is no backup, and the store is"
    text = f"{what} {days} days old: a failed disk would lose everything since then"
    yield Finding(
        "backup.due", "warning", str(facts.config.gateway.data_dir), text, "exogate backup create"
    )


def expiring(facts: Upkeep) -> Iterator[Finding]:
    """Finds tokens that expire within days."""
    later = (facts.now + RENEWED).date().isoformat()
    ends = [
        *((one.name, one.expires, "") for one in facts.config.tokens),
        *(
            (one.name, one.expires_at, _create_command(one, f"{RENEWED.days}d"))
            for one in facts.tokens
            if not one.revoked_at
        ),
    ]
    for name, at, create in ends:
        if at is not None and facts.now < at < facts.now + EXPIRES_SOON:
            text = f"the token {name} expires at {at:%Y-%m-%d %H:%M} UTC"
            fix = set_command(("tokens", name, "expires"), later)
            if create:
                fix = f"exogate token revoke {name} && {create}"
                text += "; its users need the new token that the command prints"
            yield Finding("token.expiring", "warning", f"tokens.{name}", text, fix)


def _create_command(token: CreatedToken, expires: str, without: str = "") -> str:
    """Returns the command that creates a token like this, or "" if it would have no scope."""
    scopes = [one for one in sorted(token.scopes - {without}) if not one.startswith("agent:")]
    if not scopes:
        return ""
    words = ["exogate", "token", "create", token.name, "--inherit", "--scopes", ",".join(scopes)]
    words += ["--expires", expires] if expires else []
    for one in sorted(token.scopes - {*scopes, without}):
        words += ["--agent", one.partition(":")[2]]
    if budget := token.budget:
        periods = (("session", budget.session), ("day", budget.daily), ("month", budget.monthly))
        limits = [f"{one.tokens}/{name}" for name, one in periods if one.tokens is not None]
        words += ["--budget", ",".join(limits)] if limits else []
    return shlex.join(words)


def unbound(facts: Upkeep) -> Iterator[Finding]:
    """Finds tokens whose budget has no effect, because they can speak as others."""
    for token in facts.tokens:
        if token.state(facts.now) == "active" and token.budget and IMPERSONATE in token.scopes:
            expires = token.expires_at.isoformat(timespec="seconds") if token.expires_at else ""
            create = _create_command(token, expires, IMPERSONATE)
            fix = f"exogate token revoke {token.name}" + (f" && {create}" if create else "")
            yield Finding("token.unbound", "warning", f"tokens.{token.name}", UNBOUND, fix)
    for number, one in enumerate(facts.config.tokens):
        if one.budget and IMPERSONATE in one.scopes:
            place: KeyPath = ("tokens", number, "budget")
            fix = unset_command(place)
            yield Finding("token.unbound", "warning", dotted(place), UNBOUND, fix, place)


def unused(facts: Upkeep) -> Iterator[Finding]:
    """Finds active tokens that were not used for months."""
    for token in facts.tokens:
        days = (facts.now - (token.last_used_at or token.created_at)).days
        if token.state(facts.now) == "active" and days >= UNUSED.days:
            how = "was not used" if token.last_used_at else "was never used"
            text = (
                f"the token {token.name} {how} for {days} days, and works for anyone who finds it"
            )
            fix = f"exogate token revoke {token.name}"
            yield Finding("token.unused", "warning", f"tokens.{token.name}", text, fix)


def nearly_spent(facts: Upkeep) -> Iterator[Finding]:
    """Finds limits that are nearly reached."""
    for row in facts.budgets:
        if row.limit and row.used >= NEAR * row.limit:
            unit = "USD" if row.unit == "usd" else row.unit
            text = f"{row.used:,.15g} of {row.limit:,.15g} {unit} are used; messages are refused at the limit"
            enough = math.floor(row.used / NEAR) + 1
            if row.unit == "usd":
                in_cents = math.floor(100 * row.used / NEAR) + 1
                fix = set_command(_place_of(row, facts.config), in_cents / 100)
            elif row.scope == "daily" or row.scope.startswith("token:"):
                by = enough - int(row.limit)
                fix = f"exogate budget raise {shlex.quote(row.scope)} +{by} --today"
            else:
                fix = f"exogate budget set {shlex.quote(row.scope)} {enough} --yes"
            yield Finding("budget.near", "warning", f"budgets.{row.scope}", text, fix)


def _place_of(row: BudgetRow, config: GatewayConfig) -> KeyPath:
    """Returns the key of a limit in USD."""
    kind, _, name = row.scope.partition(":")
    if kind == "token":
        is_daily = row.period_start and row.resets_at == row.period_start + timedelta(days=1)
        return ("tokens", name, "budget", "daily" if is_daily else "monthly", "usd")
    if kind == "agent" and name in config.budgets.agents:
        return ("budgets", "agent", name, "usd")
    return ("budgets", "per_agent" if kind == "agent" else kind, "usd")


def restart(facts: Upkeep) -> Iterator[Finding]:
    if facts.restart_needed:
        keys = ", ".join(facts.restart_needed)
        text = f"{keys} changed and takes effect after a restart"
        yield Finding("restart.pending", "warning", facts.restart_needed[0], text, facts.restart)


UPKEEP_CHECKS: Sequence[Callable[[Upkeep], Iterator[Finding]]] = (
    backup,
    expiring,
    unbound,
    unused,
    nearly_spent,
    restart,
)
