"""`exogate service print` gives a dashboard and alert rules over metrics that there are."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.commands import commands

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
METRICS = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text("utf-8"), re.M))


def printed(kind: str, home: Path) -> str:
    ended = commands().run(
        ["service", "print", f"--{kind}"], env={"HOME": str(home), "PATH": os.defpath}
    )
    assert (ended.code, ended.err) == (0, "")
    return ended.out


def known(name: str) -> bool:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return name in METRICS or METRICS.get(base) == "histogram"


def test_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    board = json.loads(printed("grafana", tmp_path))

    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 20
    assert [
        one for text in asked for one in re.findall(r"exogate_\w+", text) if not known(one)
    ] == []


def test_the_alert_rules_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    text = printed("alerts", tmp_path)

    assert text.count("- alert:") >= 4
    assert [one for one in re.findall(r"\bexogate_\w+", text) if not known(one)] == []


@pytest.mark.parametrize("kind", ["grafana", "alerts"])
def test_the_rate_of_a_gauge_is_asked_nowhere(kind: str, tmp_path: Path) -> None:
    asked = re.findall(r"\b(?:rate|increase)\((exogate_\w+)", printed(kind, tmp_path))

    assert asked
    assert [one for one in asked if METRICS.get(one) == "gauge"] == []


def test_prometheus_accepts_the_alert_rules_and_none_fires_when_all_is_well(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    (tmp_path / "alerts.yml").write_text(printed("alerts", tmp_path), encoding="utf-8")
    (tmp_path / "test.yml").write_text(HEALTHY, encoding="utf-8")

    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "test.yml"]):
        ran = subprocess.run([tool, *words], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


# An hour of a healthy gateway, with a failure now and then; and one that is gone.
HEALTHY = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - { series: 'up{job="exogate"}', values: '1x60' }
      - { series: 'exogate_ready', values: '1x60' }
      - { series: 'exogate_runs_total{agent="a",channel="api",reason="answered"}', values: '0+20x60' }
      - { series: 'exogate_runs_total{agent="a",channel="api",reason="provider_error"}', values: '0+1x60' }
      - { series: 'exogate_model_calls_total{provider="p",model="m",outcome="answered"}', values: '0+20x60' }
      - { series: 'exogate_model_calls_total{provider="p",model="m",outcome="failed"}', values: '0+1x60' }
      - { series: 'exogate_queue_wait_seconds_bucket{le="0.1"}', values: '0+20x60' }
      - { series: 'exogate_queue_wait_seconds_bucket{le="+Inf"}', values: '0+20x60' }
      - { series: 'exogate_store_commit_duration_seconds_bucket{le="0.01"}', values: '0+60x60' }
      - { series: 'exogate_store_commit_duration_seconds_bucket{le="+Inf"}', values: '0+60x60' }
      - { series: 'exogate_channel_up{channel="c",direction="in"}', values: '1x60' }
      - { series: 'exogate_dead_letters{channel="c"}', values: '2x60' }
      - { series: 'exogate_budget_used{scope="daily",unit="tokens"}', values: '0+10x60' }
      - { series: 'exogate_budget_limit{scope="daily",unit="tokens"}', values: '20000x60' }
      - { series: 'exogate_log_records_dropped_total', values: '0x60' }
    promql_expr_test:
      - { expr: 'count(ALERTS) or vector(0)', eval_time: 1h, exp_samples: [{ value: 0 }] }
  - interval: 1m
    input_series:
      - { series: 'up{job="exogate"}', values: '0x10' }
    alert_rule_test:
      - eval_time: 5m
        alertname: ExogateDown
        exp_alerts:
          - exp_labels: { severity: critical, job: exogate }
            exp_annotations:
              summary: The gateway does not answer Prometheus.
              description: "Look at the service: `systemctl status exogate`, then `exogate logs --since 15m`."
"""
