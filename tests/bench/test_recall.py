"""The smallest run of the benchmark of recall measures what it has to."""

import json
import subprocess
import sys
from pathlib import Path

from bench.conversations import conversation


def test_every_figure_is_held_against_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.recall", "--micro", "--json", str(file)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure for figure in json.loads(file.read_text())}
    assert figures["recall@10 against BM25"]["limit"] == 1.15
    assert figures["recall@10 against BM25"]["verdict"] == "met"
    assert figures["recall p50 in 2,000 messages"]["limit"] == 5.0


def test_a_conversation_is_the_same_for_the_same_seed() -> None:
    made = conversation(7)

    assert made == conversation(7)
    assert made.turns != conversation(8).turns
    assert len(made.questions) == 40


def test_every_question_has_its_answer_in_the_conversation() -> None:
    made = conversation(7)

    for question in made.questions:
        assert question.evidence
        assert all(made.turns[number].role == "user" for number in question.evidence)
