"""The alert rules and the dashboard ask for metrics that exist, and the rules fire as they say."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dynprof.cli.metrics import DASHBOARD, RULES
from dynprof.fleet.metrics import METRICS, measured
from tests.known_jobs import reading, with_capture
from tests.processes import ROOT, run

CASES = Path(__file__).with_name("alert_cases.yaml")
OF_PROMETHEUS = {"job", "instance"}
"""The labels that Prometheus adds to each metric."""
PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "gridPos", "datasource", "targets", "fieldConfig"],
    "properties": {
        "id": {"type": "integer"},
        "type": {"enum": ["stat", "table", "timeseries"]},
        "title": {"type": "string", "minLength": 1},
        "gridPos": {
            "type": "object",
            "required": ["x", "y", "w", "h"],
            "properties": {
                "x": {"type": "integer", "minimum": 0, "maximum": 23},
                "w": {"type": "integer", "minimum": 1, "maximum": 24},
            },
        },
        "datasource": {"$ref": "#/$defs/datasource"},
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["refId", "expr", "datasource"],
                "properties": {"datasource": {"$ref": "#/$defs/datasource"}},
            },
        },
    },
}
MODEL = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time", "annotations"],
    "properties": {
        "id": {"type": "null"},
        "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {"type": "array", "minItems": 1, "items": PANEL},
        "templating": {
            "type": "object",
            "properties": {
                "list": {"type": "array", "items": {"required": ["name", "type", "query"]}}
            },
        },
    },
    "$defs": {
        "datasource": {
            "type": "object",
            "required": ["type", "uid"],
            "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
        }
    },
}
"""What Grafana's page on the JSON model of a dashboard requires, for the panels in use."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Return the labels of each value of a job that tells all, by the name in Prometheus."""
    whole = reading(with_capture(tmp_path_factory.mktemp("job")))
    points = measured(whole, per_rank=True)
    return {one.prometheus_name: [labels for labels, _ in found] for one, found in points}


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> list[str]:
    """Return the expressions of the rules and of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [*(rule["expr"] for rule in rules()), *asked]


@pytest.mark.parametrize("query", queries())
def test_queries_ask_for_what_exists(query: str, known: dict[str, list[dict[str, str]]]) -> None:
    """Prometheus answers a query for a wrong name with nothing, as if all was well."""
    names = set(re.findall(r"\bdynprof_\w+", query))
    assert names
    assert names <= known.keys()
    for name, selected in re.findall(r"\b(dynprof_\w+)\{(.*?)\}", query):
        for label, wanted in re.findall(r'(\w+)=~?"([^"]*)"', selected):
            values = {labels[label] for labels in known[name]}
            assert wanted.startswith("$") or {*wanted.split("|")} <= values
    grouped = ",".join(re.findall(r"\b(?:by|without|on|ignoring) *\(([^)]*)\)", query))
    labels = {word.strip() for word in grouped.split(",") if word.strip()}
    assert labels <= {label for name in names for label in known[name][0]} | OF_PROMETHEUS


def test_dashboard_has_what_grafana_requires() -> None:
    """It is held against the documented model; panels do not overlap, and have different ids."""
    board = json.loads(DASHBOARD.read_text())
    jsonschema.validate(board, MODEL)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in board["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"])
    variables = {one["name"] for one in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) <= variables


def test_dashboard_shows_every_number_of_a_job() -> None:
    """A metric that no panel shows would not be found by most users."""
    shown = set(re.findall(r"\bdynprof_\w+", DASHBOARD.read_text()))
    hidden = {one.prometheus_name for one in METRICS if ".rank." not in one.name} - shown
    assert hidden == {
        "dynprof_build_info",
        "dynprof_jobs",
        "dynprof_job_last_capture_size_bytes",
        "dynprof_job_last_capture_timestamp_seconds",
        "dynprof_job_ranks_missing",
        "dynprof_job_world_size",
        "dynprof_read_duration_seconds",
        "dynprof_read_timestamp_seconds",
        "dynprof_job_disk_size_bytes",
    }


def test_page_has_every_number_and_alert() -> None:
    """The documentation names each metric once, and each alert."""
    page = (ROOT / "docs" / "monitoring.md").read_text()
    rows = "".join(re.findall(r"^\|(.*?)\|", page, re.M))
    assert sorted(re.findall(r"`(dynprof_\w+)`", rows)) == sorted(
        one.prometheus_name for one in METRICS
    )
    assert re.findall(r"`(Dynprof\w+)`", rows) == [rule["alert"] for rule in rules()]


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    """The cases for promtool cover each rule in both ways."""
    tests = yaml.safe_load(CASES.read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for fires in (True, False):
        tried = {case["alertname"] for case in cases if bool(case.get("exp_alerts")) == fires}
        assert tried == {rule["alert"] for rule in rules()}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_prometheus_takes_the_rules_and_they_fire_as_they_say() -> None:
    """The vendor's tool checks the rules, and runs the cases on series."""
    for task, file in (("check", RULES), ("test", CASES)):
        done = run(["promtool", task, "rules", file])
        assert done.returncode == 0, done.stdout + done.stderr
