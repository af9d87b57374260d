"""What Prometheus and Grafana are given, as data: documented metrics, dashboards, rules, and their queries parsed."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import promql_parser as promql
import yaml
from deploy_files import COMPOSE, REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "metrics.md"
DASHBOARDS = {path.name: json.loads(path.read_text()) for path in sorted((COMPOSE / "grafana/dashboards").glob("*"))}
RULE_FILES = {path.name: yaml.safe_load(path.read_text()) for path in sorted((COMPOSE / "prometheus/rules").glob("*"))}
ROW = re.compile(r"^\| `([\w:]+)` \|([^|]*)\|([^|]*)\|", re.MULTILINE)
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
# What scraping adds to every series, and Prometheus' own series.
SCRAPED = frozenset({"job", "instance", "namespace"})
OWN = {"up": SCRAPED, "ALERTS": SCRAPED | {"alertname", "alertstate", "severity", "server", "backend", "stage"}}
# What Grafana puts in for its macros.
MACROS = {"$__rate_interval": "1m", "$__range": "1h", "$instance": ".*"}


@dataclass(kw_only=True)
class Query:
    """One parsed PromQL expression."""

    series: dict[str, set[str]] = field(default_factory=dict)
    """Name of each series that it reads -> labels that its matchers name."""
    labels: set[str] = field(default_factory=set)
    """Labels that are grouped or matched by."""
    made: set[str] = field(default_factory=set)
    """Labels that it makes itself."""


def documented() -> dict[str, frozenset[str]]:
    """Return every series that the tables of docs/metrics.md stand for, and its labels."""
    found = dict(OWN)
    for name, labels, unit in ROW.findall(DOCUMENT.read_text()):
        known = SCRAPED | set(re.findall(r"\w+", labels))
        if "histogram" in unit:
            found |= {f"{name}_bucket": known | {"le"}, f"{name}_sum": known, f"{name}_count": known}
        else:
            found[name] = known
    return found


def panels(dashboard: Mapping[str, Any]) -> list[Any]:
    """Return the panels that show something, not the headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def rules() -> Iterator[Any]:
    """Yield every rule of every file."""
    for document in RULE_FILES.values():
        for group in document["groups"]:
            yield from group["rules"]


def alerts() -> dict[str, Any]:
    """Return the alerting rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def filled(expression: str) -> str:
    """Put in what Grafana would."""
    for macro, value in MACROS.items():
        expression = expression.replace(macro, value)
    return expression


def parsed(expression: str) -> Query:
    """Parse an expression; ValueError where it is no PromQL."""
    query = Query()
    promql.walk(promql.parse(filled(expression)), lambda node: _visit(node, query))
    return query


def _visit(node: Any, query: Query) -> None:
    match node:
        case promql.VectorSelector():
            _select(node, query)
        case promql.AggregateExpr() if node.modifier is not None:
            query.labels |= set(node.modifier.labels)
        case promql.BinaryExpr() if node.modifier is not None:
            matching, joined = node.modifier.matching, node.modifier.group_labels
            query.labels |= set(matching.labels if matching else ()) | set(joined or ())
        case promql.Call() if node.func.name == "label_replace":
            query.made.add(node.args[1].val)


def _select(selector: Any, query: Query) -> None:
    matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    names = [selector.name] if selector.name else matchers.pop("__name__").split("|")
    for name in names:
        query.series.setdefault(name, set()).update(matchers)
