"""The dashboards: what Grafana takes, readable, and about metrics that exist."""

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml
from deploy_files import COMPOSE, compose
from monitoring_files import DASHBOARDS, LEGEND, documented, panels, parsed, rules

from gateway.timings import STAGES

RECORDED = {rule["record"] for rule in rules() if "record" in rule}
SOURCES = {
    source["uid"]: source
    for source in yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/datasources.yaml").read_text())[
        "datasources"
    ]
}
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)


def targets(dashboard: Any) -> list[tuple[str, Any]]:
    """Return every query with the title of its panel."""
    return [(panel["title"], target) for panel in panels(dashboard) for target in panel["targets"]]


def test_the_dashboards_are_three_and_told_apart():
    """Uids and titles are unique and stable: links to a dashboard go on working."""
    assert {dashboard["uid"]: dashboard["title"] for dashboard in DASHBOARDS.values()} == {
        "twostage-request": "One request",
        "twostage-saturation": "Saturation",
        "twostage-quality": "Quality guard",
    }


@each_dashboard
def test_a_dashboard_is_one_file_for_every_installation(dashboard: Any):
    """It has no id of some database, nobody can change it by mistake, and its datasources are the provisioned ones."""
    assert "id" not in dashboard
    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] == 42
    named = set()
    for source in _values(dashboard, "datasource"):
        assert SOURCES[source["uid"]]["type"] == source["type"]
        named.add(source["uid"])
    assert named == {"prometheus"}


@each_dashboard
def test_panels_have_their_own_ids_and_places(dashboard: Any):
    """No id twice, nothing over something else, nothing beyond the 24 columns."""
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = any(
            first[at] + first[size] <= second[at]
            for at, size in (("x", "w"), ("y", "h"))
            for first, second in ((one, other), (other, one))
        )
        assert apart, (one, other)


@each_dashboard
def test_every_panel_says_what_it_shows(dashboard: Any):
    """A title of its own, one sentence, a unit, and queries with names of their own."""
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(set(titles)) == len(titles)
    for panel in panels(dashboard):
        assert panel["description"].endswith("."), panel["title"]
        assert ". " not in panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


@each_dashboard
def test_every_query_is_about_what_is_documented(dashboard: Any):
    """Each is PromQL, and its series and labels are in docs/metrics.md."""
    known = documented()
    for title, target in targets(dashboard):
        query = parsed(target["expr"])
        assert query.series, title
        for name, labels in query.series.items():
            assert labels <= known[name], (title, name)
        available = set().union(*(known[name] for name in query.series)) | query.made
        assert query.labels <= available, title
        assert set(LEGEND.findall(target["legendFormat"])) <= available, title


@each_dashboard
def test_every_query_is_of_the_chosen_instances(dashboard: Any):
    """All but recorded shares, which are of everything, follow the variable at the top."""
    for title, target in targets(dashboard):
        for name, labels in parsed(target["expr"]).series.items():
            assert ("instance" in labels) is (name not in RECORDED), (title, name)
    (variable,) = dashboard["templating"]["list"]
    selector = variable["definition"].removeprefix("label_values(").removesuffix(", instance)")
    assert variable["query"]["query"] == variable["definition"]
    assert set(parsed(selector).series) <= set(documented())


@each_dashboard
def test_a_window_is_as_long_as_the_scrape_interval_wants(dashboard: Any):
    """Rates use Grafana's own window, which follows the interval that Prometheus has and Grafana is told."""
    for title, target in targets(dashboard):
        windows = re.findall(r"\}\[([^\]]+)\]", target["expr"])
        assert len(windows) == len(re.findall(r"\b(?:rate|increase)\(", target["expr"])), title
        assert set(windows) <= {"$__rate_interval", "$__range"}, title
    interval = yaml.safe_load((COMPOSE / "prometheus/prometheus.yaml").read_text())["global"]["scrape_interval"]
    assert SOURCES["prometheus"]["jsonData"]["timeInterval"] == interval


def test_a_slow_search_leads_to_its_trace():
    """Exemplars are kept by Prometheus, asked for by panels, and linked to Jaeger by the label that they have."""
    assert "--enable-feature=exemplar-storage" in compose("observability")["services"]["prometheus"]["command"]
    (link,) = SOURCES["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert (link["name"], SOURCES[link["datasourceUid"]]["type"]) == ("trace_id", "jaeger")
    asked = [target for _, target in targets(DASHBOARDS["request.json"]) if target.get("exemplar")]
    assert len(asked) > 10
    for target in asked:
        (name,) = parsed(target["expr"]).series
        assert name.endswith("_stage_seconds_bucket")


@pytest.mark.parametrize("title", ["Where the time of a search goes", "Share of the time"])
def test_every_stage_of_a_search_has_its_part_of_the_time(title: str):
    """A stage that the gateway measures and a panel leaves out would make its bars add up to less than the whole."""
    (panel,) = [panel for panel in panels(DASHBOARDS["request.json"]) if panel["title"] == title]
    shown = " ".join(target["expr"] for target in panel["targets"])
    assert {*STAGES, "all"} == {name for each in re.findall(r'stage=~?"([^"]+)"', shown) for name in each.split("|")}


@pytest.mark.parametrize("stage", STAGES)
def test_what_few_searches_do_is_stacked_as_what_all_took(stage: str):
    """A part that is observed of some searches only is divided by all of them: its mean would be too high a bar."""
    (panel,) = [panel for panel in panels(DASHBOARDS["request.json"]) if "stacked" in panel["description"]]
    (expression,) = [one["expr"] for one in panel["targets"] if f'stage="{stage}"' in one["expr"]]
    total, count = expression.split(" / ")
    assert f'gateway_stage_seconds_sum{{stage="{stage}"' in total
    assert 'gateway_stage_seconds_count{stage="all", part="total"' in count


def test_files_are_written_as_they_are_edited():
    """They are JSON with two spaces and nothing else, so that a change shows as a change."""
    for name, dashboard in DASHBOARDS.items():
        text = (COMPOSE / "grafana/dashboards" / name).read_text()
        assert text == json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n", name


def _values(node: Any, key: str) -> list[Any]:
    """Return what stands under a key, however deep."""
    if isinstance(node, list):
        return [value for item in node for value in _values(item, key)]
    if not isinstance(node, dict):
        return []
    return ([node[key]] if key in node else []) + [value for item in node.values() for value in _values(item, key)]
