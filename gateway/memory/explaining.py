"""What a model was shown, part by part: few words, and none of its texts. Pure."""

from collections.abc import Sequence

from gateway.domain.agents import AgentDef
from gateway.memory.context import Context, Item, Part

TOLD = "told by a rule, the gateway or another session; not kept"
ORDER = ("soul", "system", "summary", "window", "facts", "recall", "notices", "tools", "question")


def explained(agent: AgentDef, context: Context, noticed: Sequence[int]) -> dict[str, object]:
    """What it was first asked with, and the notices that it was told since; as plain as a run keeps
    it. The parts add up to the total."""
    items = tuple(Item(f"notice-{place}", one, TOLD) for place, one in enumerate(noticed, 1))
    parts = [*context.parts, Part("notices", sum(noticed), items)]
    parts.sort(key=lambda part: ORDER.index(part.kind))
    return {
        "model": agent.model,
        "max_context_tokens": agent.context_window,
        "total_tokens": sum(part.tokens for part in parts),
        "parts": [
            [part.kind, part.tokens, [[one.id, one.tokens, one.why] for one in part.items]]
            for part in parts
        ],
    }


def told_in_full(run_id: str, kept: dict[str, object] | None) -> dict[str, object]:
    """With names for everything; of a run that showed nothing to any model, without parts."""
    kept = kept or {"model": None, "max_context_tokens": 0, "total_tokens": 0, "parts": []}
    parts = kept["parts"]
    assert isinstance(parts, list)
    shown = [
        {
            "kind": kind,
            "tokens": tokens,
            "items": [dict(zip(("id", "tokens", "why"), item, strict=True)) for item in items],
        }
        for kind, tokens, items in parts
    ]
    return {"run_id": run_id, **kept, "parts": shown}
