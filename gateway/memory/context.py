"""Packs what a model is shown, in a stable order, within the agent's allowance. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.agents import AgentDef
from gateway.domain.messages import Message, Node, ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.souls import Soul
from gateway.domain.tokens import MESSAGE_OVERHEAD, estimate_tokens


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that a model may be shown, each with its estimated tokens. Questions that are
    answered together are the end of `history`, and counted with the last one."""

    system: str
    history: tuple[Message, ...]
    question: Message
    system_tokens: int
    history_tokens: int
    question_tokens: int
    tools_tokens: int

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.history, self.question)

    @property
    def tokens(self) -> int:
        """All of it together."""
        said = self.system_tokens + self.history_tokens + self.question_tokens
        return said + self.tools_tokens


def message_tokens(message: Message) -> int:
    """Estimated tokens of one message, its tool calls and its result included."""
    tokens = MESSAGE_OVERHEAD + estimate_tokens(message.text)
    for call in message.tool_calls:
        tokens += estimate_tokens(call.name) + estimate_tokens(call.arguments) + MESSAGE_OVERHEAD
    if message.result is not None:
        tokens += estimate_tokens(message.result.content) + MESSAGE_OVERHEAD
    return tokens


def system_text(agent: AgentDef, soul: Soul | None) -> str:
    """The soul comes first, always; the agent's own instructions follow."""
    parts = (soul.content.strip() if soul else "", agent.system_prompt.strip())
    return "\n\n".join(part for part in parts if part)


def pack(
    agent: AgentDef,
    soul: Soul | None,
    window: tuple[Node, ...],
    question: Message,
    tools: tuple[ToolSpec, ...],
    *,
    earlier: Sequence[Message] = (),
) -> Context:
    """Soul, instructions, recent exchanges, question, and `earlier` ones that are answered along
    with it. Questions are never left out; exchanges are shown whole or not at all, newest first
    until one does not fit."""
    system = system_text(agent, soul)
    asked = message_tokens(question) + sum(map(message_tokens, earlier))
    fixed = (estimate_tokens(system), asked, sum(map(_tool_tokens, tools)))
    allowance = min(agent.context.token_budget, agent.context_window - agent.max_tokens)
    shown, tokens = _fitting(window, allowance - sum(fixed), agent.context.recent_turns)
    history = (*paired(tuple(node.message for node in shown)), *earlier)
    system_tokens, question_tokens, tools_tokens = fixed
    return Context(system, history, question, system_tokens, tokens, question_tokens, tools_tokens)


def begins_exchange(nodes: Sequence[Node], place: int) -> bool:
    """A question right after an answer: what follows another question, or the result of a tool, was
    answered together with what is before it."""
    before = nodes[place - 1].message.role if place else "assistant"
    return nodes[place].message.role == "user" and before == "assistant"


def paired(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Every call has its result: a conversation may go on from the middle of an exchange, and a
    model refuses a history with a call that nobody answered."""
    mended: list[Message] = []
    waiting: dict[str, ToolCall] = {}
    for message in messages:
        if message.result is not None:
            waiting.pop(message.result.call_id, None)
        else:
            mended.extend(_unanswered(call) for call in waiting.values())
            waiting = {call.id: call for call in message.tool_calls}
        mended.append(message)
    mended.extend(_unanswered(call) for call in waiting.values())
    return messages if len(mended) == len(messages) else tuple(mended)


def _unanswered(call: ToolCall) -> Message:
    gone = "No result: the conversation goes on from before it."
    return Message("tool", result=ToolResult(call.id, call.name, gone, is_error=True))


def _fitting(window: tuple[Node, ...], room: int, turns: int) -> tuple[tuple[Node, ...], int]:
    start, used, pending, taken = len(window), 0, 0, 0
    for index in range(len(window) - 1, -1, -1):
        pending += window[index].token_count
        if used + pending > room or taken == turns:
            break
        if begins_exchange(window, index):
            start, used, pending, taken = index, used + pending, 0, taken + 1
    return window[start:], used


def _tool_tokens(tool: ToolSpec) -> int:
    return estimate_tokens(tool.name + tool.description + tool.parameters) + MESSAGE_OVERHEAD
