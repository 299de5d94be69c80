"""What passes between a turn, its model and its tools: messages, replies, and what people add."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from gateway.agent.course import Course
from gateway.agent.job import Job, usage_chunk, with_distinct_ids
from gateway.agent.judge import Judge
from gateway.agent.reins import Said
from gateway.agent.round import Round
from gateway.agent.voice import Voice, warn
from gateway.agent.wishes import AskModel, ModelReplied, ToolReturned
from gateway.agent.words import nearly_spent
from gateway.control.notices import Moment as Point
from gateway.control.trees.calls import Call
from gateway.domain.messages import Message, ToolCall
from gateway.domain.model import Delta, ModelReply, TextDelta, ToolSpec
from gateway.domain.usage import Spent, Usage
from gateway.memory.window import message_tokens, paired
from gateway.tools.originals import SPEC


@dataclass(slots=True)
class Exchange:
    """`messages` is what the model is shown; `said` is what stays of it."""

    job: Job
    voice: Voice
    course: Course
    judge: Judge
    round: Round
    system: str = ""
    messages: list[Message] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    queued: list[Said] = field(default_factory=list)  # people said it meanwhile
    taken: list[Said] = field(default_factory=list)  # and these are among the messages now
    last: ModelReply | None = None
    noticed: list[int] = field(default_factory=list)  # tokens of what it was told beside it
    replies: int = 0
    _heard: list[str] = field(default_factory=list)
    _has_begun: bool = False  # the reply that is asked for

    def tell(self, message: Message, *, is_kept: bool = True) -> None:
        """Shows a message to the model; `is_kept` makes it part of the conversation."""
        self.messages.append(message)
        self.course.context_tokens += message_tokens(message)
        if is_kept:
            self.said.append(message)

    def asking(self, call: Call, ticket: int) -> AskModel:
        """Asks for the next reply, as a leaf says."""
        taken, self.queued = tuple(self.queued), []
        for said in taken:
            self.tell(Message("user", said.text))
        self.taken.extend(taken)
        self.course.show_context()
        self.course.asked += 1
        self._heard.clear()
        self._has_begun = False
        options = call.options
        model = self.voice.model or text(options, "model", self.job.agent.model)
        budget = int(number(options, "budget") or 0) or None
        return AskModel(
            ticket,
            self.replies,
            self.system,
            paired(tuple(self.messages)),  # whatever the tree put between them
            self._tools(options.get("tools")),
            model,
            budget,
            number(options, "timeout"),
            number(options, "idle-timeout"),
            taken,
        )

    def _tools(self, named: object) -> tuple[ToolSpec, ...]:
        """Of the agent's, those that the leaf names and no rule has taken away; and the one that reads
        on where a result is shown in part."""
        wanted = named if isinstance(named, list) else [tool.name for tool in self.job.tools]
        tools = [tool for tool in self.job.tools if tool.name in wanted]
        for message in self.messages:
            excerpt = message.result.excerpt if message.result is not None else None
            if excerpt is not None and excerpt.reference:
                tools = [*(tool for tool in tools if tool.name != SPEC.name), SPEC]
                break
        return tuple([tool for tool in tools if self.voice.allows(tool.name)])

    def hear(self, delta: Delta) -> bool:
        """A piece of a reply; False if that is more than the budget allows."""
        self._has_begun = True
        if isinstance(delta, TextDelta):
            self._heard.append(delta.text)
            self.voice.chunk("content", {"content": delta.text})
        else:
            self.voice.chunk("thinking", {"content": delta.text})
        return self.course.hear(delta.text)

    def take(self, told: ModelReplied) -> None:
        """A complete reply; then its calls are open."""
        self.last = reply = with_distinct_ids(told.reply, self.said)
        for kind, said in (("thinking", reply.thinking), ("content", reply.text)):
            if said and not told.was_heard:
                self.voice.chunk(kind, {"content": said})
        self.replies += 1
        self._heard.clear()
        self._has_begun = False
        self.tell(
            Message(
                "assistant",
                reply.text,
                reply.tool_calls,
                thinking=reply.thinking,
                extras=reply.extras,
            )
        )
        self.voice.chunk("usage", usage_chunk(reply).data)
        self.course.spend(reply.usage)
        for warning in reply.warnings:
            turn = self.course.state.turn
            warn(self.voice, "budget.token.warning", turn, *nearly_spent(warning))
        self.round.open(reply.tool_calls, self.course.limits.max_tool_calls_per_turn)
        if not reply.tool_calls:
            self.voice.event("agent.turn.ended", {"turn": self.course.state.turn})

    def take_result(self, call: ToolCall, told: ToolReturned) -> None:
        self.round.take(call, told)
        self.take_spent(told.result.spent)

    def take_spent(self, spent: Sequence[Spent]) -> None:
        """What models used that worked for a tool, also if nobody waits for its result any more."""
        for one in spent:
            self.voice.chunk("usage", usage_chunk(one).data)
            self.course.spend(one.usage)

    def cut(self, *, was_sent: bool = True) -> None:
        """No reply will come. The prompt was sent and some may have been heard: an estimate is
        nearer than nothing."""
        if was_sent or self._has_begun:
            agent, heard = self.job.agent, ceil(self.course.live)
            usage = Usage(self.course.context_tokens, heard, estimated=True)
            spent = Spent(usage, agent.provider, self.voice.model or agent.model)
            self.voice.chunk("usage", usage_chunk(spent).data)
            self.course.spend(usage)
        self._has_begun = False

    def close_round(self) -> None:
        """Every call of the last reply has its result among the messages, in order."""
        if not self.round.is_open:
            return
        executed = []
        for call, result, was_executed in self.round.close():
            self.tell(Message("tool", result=result))
            self.course.show_context()
            if was_executed:
                executed.append((call, result))
        self.judge.end_turn(executed)

    def drain(self, point: Point) -> None:
        """Tells the notices that are due; the model sees them, the conversation does not keep them."""
        turn, tools = self.course.state.turn, self.round.take_done()
        told = self.voice.drain(point, turn=turn, tools=tools)
        if told:
            notice = Message("user", told)
            self.noticed.append(message_tokens(notice))
            self.tell(notice, is_kept=False)

    @property
    def heard(self) -> str:
        """Of a reply that did not come to its end."""
        return "".join(self._heard)

    @property
    def is_answered(self) -> bool:
        last = self.said[-1] if self.said else None
        return last is not None and last.role == "assistant" and not last.tool_calls

    @property
    def last_text(self) -> str:
        texts = (m.text for m in reversed(self.said) if m.role == "assistant" and m.text)
        return next(texts, "")


def number(options: Mapping[str, object], option: str) -> float | None:
    """An option of a leaf, if it is one."""
    value = options.get(option)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def text(options: Mapping[str, object], option: str, usual: str) -> str | None:
    """An option of a leaf, if it says something else than what is usual."""
    value = options.get(option)
    return value if isinstance(value, str) and value not in {"", usual} else None
