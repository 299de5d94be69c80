"""What rules and trees may look at of a run: plain data, made when it is asked for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType

from gateway.agent.course import Course
from gateway.agent.job import Job
from gateway.agent.round import Round
from gateway.domain.agents import Limits
from gateway.domain.bindings import peer_in

View = Callable[[], Mapping[str, object]]

LIMITS = tuple(limit.name for limit in fields(Limits))
# Each root with its keys: what trees and rules are checked against before they run.
ROOTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "state": (
            "turn",
            "tokens_used",
            "iteration_percent",
            "token_percent",
            "elapsed_seconds",
            "consecutive_errors",
            "warned",
            "recent_actions",
            "reason",
        ),
        "limits": LIMITS,
        "usage": ("input_tokens", "output_tokens", "total_tokens", "cost_usd"),
        "context": ("tokens", "max_tokens", "percent"),
        "turn": ("number", "tool_calls", "tools_done"),
        "history": ("messages",),
        "user": ("id", "channel", "peer"),
        "project": ("id",),
        "config": (*LIMITS, "agent", "model", "provider", "tree"),
    }
)


class Sight(Mapping[str, object]):
    """Names to look up; each view is made anew, so that it shows what is true now."""

    def __init__(self) -> None:
        self.views: Mapping[str, View] = {}

    def __getitem__(self, name: str) -> object:
        return self.views[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(ROOTS)

    def __len__(self) -> int:
        return len(ROOTS)


def views(job: Job, course: Course, calls: Round) -> Mapping[str, View]:
    """Under each of ROOTS, what is true now."""
    key, agent = job.scope.session_key, job.agent
    limits = {name: getattr(course.limits, name) for name in LIMITS}
    said = {"agent": agent.id, "model": agent.model, "provider": agent.provider}
    config = {**limits, **said, "tree": job.plan.name}

    def usage() -> dict[str, object]:
        used = course.usage
        return {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "total_tokens": used.total,
            "cost_usd": used.cost_usd,
        }

    def context() -> dict[str, object]:
        tokens, most = course.context_tokens, agent.context_window
        return {"tokens": tokens, "max_tokens": most, "percent": 100 * tokens / most}

    def turn() -> dict[str, object]:
        return {
            "number": course.state.turn + 1,
            "tool_calls": [call.name for call in calls.calls],
            "tools_done": [call.name for call in calls.calls if calls.result(call.id)],
        }

    return {
        "state": course.view,
        "limits": lambda: limits,
        "usage": usage,
        "context": context,
        "turn": turn,
        "history": lambda: {"messages": len(job.context.history)},
        "user": lambda: {"id": job.scope.principal, "channel": key.channel, "peer": peer_in(key)},
        "project": lambda: {"id": course.state.project_id},
        "config": lambda: config,
    }
