"""What only a gateway at work can find wrong: how it stands with backups, tokens, budgets and what waits for a restart."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.api.spending import BudgetRow
from gateway.app.doctor import Finding, set_command, unset_command
from gateway.config.problems import KeyPath, dotted
from gateway.config.values import GatewayConfig
from gateway.domain.budgets import TokenBudget
from gateway.domain.tokens import CreatedToken

BACKUP_DAYS = 7  # that a store may go without one
EXPIRES_SOON = timedelta(days=7)
UNUSED = timedelta(days=90)
SPEAKS_AS = "impersonate"
NEAR = 0.8  # of a limit
LASTS = timedelta(days=90)  # a date that is set anew


@dataclass(frozen=True, slots=True)
class Upkeep:
    """`began`: when the store was new. `restart`: the command that starts this gateway anew."""

    config: GatewayConfig
    now: datetime
    began: datetime
    backed_up: datetime | None
    tokens: Sequence[CreatedToken]
    budgets: Sequence[BudgetRow]
    restart_needed: Sequence[str]
    restart: str


def backup(its: Upkeep) -> Iterator[Finding]:
    """Due once there is something to lose."""
    days = (its.now - (its.backed_up or its.began)).days
    if days < BACKUP_DAYS or its.config.store.url == "memory":
        return
    what = "the last backup is" if its.backed_up else "there is no backup, and the store is"
    text = f"{what} {days} days old: a lost disk would take all that came since"
    yield Finding(
        "backup.due", "warning", str(its.config.gateway.data_dir), text, "exogate backup create"
    )


def expiring(its: Upkeep) -> Iterator[Finding]:
    """Tokens that end within days, so that their owners are not surprised."""
    later = (its.now + LASTS).date().isoformat()
    ends = [
        *((one.name, one.expires, "") for one in its.config.tokens),
        *(
            (one.name, one.expires_at, _again(one, f"{LASTS.days}d"))
            for one in its.tokens
            if not one.revoked_at
        ),
    ]
    for name, at, again in ends:
        if at is not None and its.now < at < its.now + EXPIRES_SOON:
            text = f"the token {name} expires at {at:%Y-%m-%d %H:%M} UTC"
            fix = f"exogate token revoke {name} && {again}" if again else ""
            fix = fix or set_command(("tokens", name, "expires"), later)
            text += "; whoever uses it needs the one that the command prints" if again else ""
            yield Finding("token.expiring", "warning", f"tokens.{name}", text, fix)


def _again(token: CreatedToken, expires: str, without: str = "") -> str:
    """The command that creates such a token anew; empty if nothing would be left for it to do."""
    scopes = [one for one in sorted(token.scopes - {without}) if not one.startswith("agent:")]
    if not scopes:
        return ""
    words = ["exogate", "token", "create", token.name, "--inherit", "--scopes", ",".join(scopes)]
    words += ["--expires", expires] if expires else []
    for one in sorted(token.scopes - {*scopes, without}):
        words += ["--agent", one.partition(":")[2]]
    if token.budget and (limits := ",".join(_limits(token.budget))):
        words += ["--budget", limits]
    return shlex.join(words)


def _limits(budget: TokenBudget) -> Iterator[str]:
    for period, limit in (
        ("session", budget.session),
        ("day", budget.daily),
        ("month", budget.monthly),
    ):
        if limit.tokens is not None:
            yield f"{limit.tokens}/{period}"


def unbound(its: Upkeep) -> Iterator[Finding]:
    """Tokens whose budget holds nothing back: who speaks as others spends what is theirs."""
    for token in its.tokens:
        if token.state(its.now) == "active" and token.budget and SPEAKS_AS in token.scopes:
            text = f"the token {token.name} has a budget, and may speak as others, which spends theirs alone"
            expires = token.expires_at.isoformat(timespec="seconds") if token.expires_at else ""
            again = _again(token, expires, SPEAKS_AS)
            fix = f"exogate token revoke {token.name}" + (f" && {again}" if again else "")
            yield Finding("token.unbound", "warning", f"tokens.{token.name}", text, fix)
    for number, one in enumerate(its.config.tokens):
        if one.budget and SPEAKS_AS in one.scopes:
            text = f"the token {one.name} has a budget, and may speak as others, which spends theirs alone"
            place: KeyPath = ("tokens", number, "budget")
            yield Finding(
                "token.unbound", "warning", dotted(place), text, unset_command(place), place
            )


def unused(its: Upkeep) -> Iterator[Finding]:
    """Tokens that nobody would miss."""
    for token in its.tokens:
        days = (its.now - (token.last_used_at or token.created_at)).days
        if token.state(its.now) == "active" and days >= UNUSED.days:
            how = "was not used" if token.last_used_at else "was never used"
            text = f"the token {token.name} {how} for {days} days, and lets in whoever finds it"
            fix = f"exogate token revoke {token.name}"
            yield Finding("token.unused", "warning", f"tokens.{token.name}", text, fix)


def nearly_spent(its: Upkeep) -> Iterator[Finding]:
    """Limits that will refuse the next calls."""
    for row in its.budgets:
        if row.limit and row.used >= NEAR * row.limit:
            unit = "USD" if row.unit == "usd" else row.unit
            text = f"{row.used:,.15g} of {row.limit:,.15g} {unit} are used; at the limit, messages are refused"
            enough = math.floor(row.used / NEAR) + 1
            if row.unit == "usd":
                in_cents = math.floor(100 * row.used / NEAR) + 1
                fix = set_command(_place_of(row, its.config), in_cents / 100)
            elif row.scope == "daily" or row.scope.startswith("token:"):
                by = enough - int(row.limit)
                fix = f"exogate budget raise {shlex.quote(row.scope)} +{by} --today"
            else:
                fix = f"exogate budget set {shlex.quote(row.scope)} {enough} --yes"
            yield Finding("budget.near", "warning", f"budgets.{row.scope}", text, fix)


def _place_of(row: BudgetRow, config: GatewayConfig) -> KeyPath:
    """Where a limit in USD is written."""
    kind, _, name = row.scope.partition(":")
    if kind == "token":
        is_daily = row.period_start and row.resets_at == row.period_start + timedelta(days=1)
        return ("tokens", name, "budget", "daily" if is_daily else "monthly", "usd")
    if kind == "agent" and name in config.budgets.agents:
        return ("budgets", "agent", name, "usd")
    return ("budgets", "per_agent" if kind == "agent" else kind, "usd")


def restart(its: Upkeep) -> Iterator[Finding]:
    if its.restart_needed:
        keys = ", ".join(its.restart_needed)
        text = f"{keys} changed, and will not take effect before a restart"
        yield Finding("restart.pending", "warning", its.restart_needed[0], text, its.restart)


UPKEEP_CHECKS: Sequence[Callable[[Upkeep], Iterator[Finding]]] = (
    backup,
    expiring,
    unbound,
    unused,
    nearly_spent,
    restart,
)
