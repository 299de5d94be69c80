"""A resolver that answers from a script."""

from collections.abc import Sequence


class ScriptedLookup:
    """Its answers come one after the other, the last one for ever; keeps what it was asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        if not self._answers:
            raise OSError("this name was to be looked up by nobody")
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
