"""Prometheus' rules: about metrics that exist, and with something to do for everybody whom they wake."""

import re
import shutil
import subprocess

import pytest
import yaml
from deploy_files import COMPOSE
from monitoring_files import DASHBOARDS, DOCUMENT, alerts, documented, panels, parsed, rules

CASES = COMPOSE / "prometheus/tests/alerts.yaml"
PROMTOOL = shutil.which("promtool")
ALERTS = alerts()
RULES = list(rules())
NAMES = [f"{rule.get('alert') or rule['record']}-{number}" for number, rule in enumerate(RULES)]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_rule_is_about_what_is_documented(rule: dict):
    """Each is PromQL, and its series and labels are in docs/metrics.md."""
    known, query = documented(), parsed(rule["expr"])
    assert query.series
    for name, labels in query.series.items():
        assert labels <= known[name], name
    assert query.labels <= set().union(*(known[name] for name in query.series)) | query.made


def test_what_is_recorded_is_documented_and_used():
    """Every recorded series has the labels of its row, and a panel or an alert that needs it."""
    expressions = [rule["expr"] for rule in RULES if "alert" in rule]
    expressions += [
        target["expr"]
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]
    used = set().union(*(parsed(expression).series for expression in expressions))
    for rule in RULES:
        if "record" in rule:
            assert rule["record"] in used
            assert set(rule.get("labels", {})) <= documented()[rule["record"]]


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_every_alert_says_what_to_do(name: str):
    """It waits before it fires, says how bad it is and what is wrong, and points at a section about itself."""
    alert = ALERTS[name]
    assert re.fullmatch(r"\d+m", alert["for"])
    assert re.search(r"\b(warning|critical)\b", alert["labels"]["severity"])
    assert alert["annotations"]["summary"].endswith(".")
    assert alert["annotations"]["runbook"] == f"docs/metrics.md#{name.lower()}"
    assert f"\n### {name}\n" in DOCUMENT.read_text()


def test_the_document_lists_every_alert():
    """The table has the alerts there are, with how long each waits."""
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| .*, for (\d+) minutes?.* \|", DOCUMENT.read_text(), re.MULTILINE)
    listed = {name: f"{minutes}m" for name, _, minutes in rows}
    assert all(anchor == name.lower() for name, anchor, _ in rows)
    assert {name: alert["for"] for name, alert in ALERTS.items()} == listed


def test_what_panels_say_of_alerts_is_so():
    """An alert that a panel's description names exists."""
    described = " ".join(panel["description"] for dashboard in DASHBOARDS.values() for panel in panels(dashboard))
    assert set(re.findall(r"Twostage\w+", described)) <= set(ALERTS)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_alerts_fire_when_they_should():
    """Prometheus' own tool runs compose/prometheus/tests, where series are made up and alerts are expected."""
    done = subprocess.run([PROMTOOL, "test", "rules", CASES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires():
    """compose/prometheus/tests has one for each, and one in which some do not."""
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(ALERTS)
    assert any(not case["exp_alerts"] for case in cases)
