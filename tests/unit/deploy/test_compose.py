"""The compose files: valid, hardened, in agreement with settings and with each other."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest
import yaml
from deploy_files import COMPOSE, HEALTH_PORTS, METRICS_PORT, PORTS, Document, compose, filled, seconds, settings_of
from jsonschema import Draft202012Validator

OVERLAYS = ("gpu", "observability", "load")
FILES = sorted(path.name for path in COMPOSE.glob("compose*.yaml"))
SERVERS = tuple(PORTS)
COMMANDS = ("twostage", "acquire-demo", "acquire-full", "ghz", "load-report")
# Images without anything that could ask them how they are.
MUTE = ("collector", "jaeger")
ALL = compose(*OVERLAYS)["services"]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    """The compose specification's own schema."""
    text = resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    return Draft202012Validator(json.loads(text))


def service(name: str) -> Document:
    """One service with every overlay over it."""
    return ALL[name]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_the_compose_specification_allows(name: str, schema: Draft202012Validator):
    """No file has a key or a value that the specification does not know."""
    document = yaml.safe_load(filled((COMPOSE / name).read_text()))
    assert [error.message for error in schema.iter_errors(document)] == []


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_container_is_confined(name: str):
    """No root, no capabilities, no new ones, no writable image, and limits on what can be used up."""
    each = service(name)
    user, _, group = each["user"].partition(":")
    assert user != "0"
    assert user.isdigit()
    assert group.isdigit()
    assert each["read_only"] is True
    assert each["cap_drop"] == ["ALL"]
    assert each["security_opt"] == ["no-new-privileges:true"]
    assert set(each["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert "privileged" not in each
    assert all(mount.split(":")[0] == "/tmp" for mount in each["tmpfs"])  # noqa: S108 - the container's


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_image_has_a_version(name: str):
    """What is pulled or built tomorrow is what is pulled or built today."""
    tag = re.fullmatch(r"[\w./-]+:v?(\d+\.\d+\.\d+)[\w.-]*", service(name)["image"])
    assert tag, service(name)["image"]


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_serves_comes_back_and_says_how_it_is(name: str):
    """Services are restarted and have a health check; commands run once and have none."""
    each = service(name)
    runs_once = name in COMMANDS
    assert each["restart"] == ("no" if runs_once else "unless-stopped")
    assert bool(each["healthcheck"].get("disable")) is (runs_once or name in MUTE)
    assert ("profiles" in each) is runs_once


@pytest.mark.parametrize("name", SERVERS)
def test_our_servers_are_asked_over_grpc_where_tls_changes_nothing(name: str):
    """A health check asks on the address family that is listened on, at the port without TLS (field failure 62)."""
    each = service(name)
    assert each["healthcheck"]["test"] == ["CMD", "python", "-m", "serving.probe", f"127.0.0.1:{HEALTH_PORTS[name]}"]
    assert int(each["environment"][f"TWOSTAGE_{name.upper()}_HEALTH_PORT"]) == HEALTH_PORTS[name]
    assert seconds(each["healthcheck"]["timeout"]) > 3


@pytest.mark.parametrize("overlays", [(), OVERLAYS])
@pytest.mark.parametrize("name", SERVERS)
def test_every_setting_exists_and_is_right(name: str, overlays: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """The server starts with exactly these variables: it would exit at one that it does not know."""
    environment = compose(*overlays)["services"][name]["environment"]
    settings = settings_of(name, environment, monkeypatch)
    assert settings.port == PORTS[name]
    assert settings.metrics_port == METRICS_PORT
    assert settings.max_connection_age_s <= 300


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_given_the_time_to_drain(name: str, monkeypatch: pytest.MonkeyPatch):
    """The engine kills only after drain and grace have passed (field failure 19)."""
    settings = settings_of(name, service(name)["environment"], monkeypatch)
    assert seconds(service(name)["stop_grace_period"]) >= settings.drain_delay_s + settings.grace_s + 5


@pytest.mark.parametrize("name", ["encoder", "reranker"])
def test_replicas_can_be_added(name: str):
    """Nothing of a model server can exist only once, and the gateway balances over its name (field failures 7, 8)."""
    each = service(name)
    assert not {"ports", "container_name", "hostname"} & set(each)
    target = service("gateway")["environment"][f"TWOSTAGE_GATEWAY_{name.upper()}_TARGET"]
    assert target == f"dns:///{name}:{PORTS[name]}"
    assert float(each["environment"][f"TWOSTAGE_{name.upper()}_MAX_CONNECTION_AGE_S"]) <= 60


@pytest.mark.parametrize("name", ["encoder", "reranker", "qdrant"])
def test_what_holds_models_and_documents_cannot_be_reached_nor_reach_out(name: str):
    """They are in the network without a way out alone, and publish nothing."""
    document = compose(*OVERLAYS)
    assert document["networks"]["back"] == {"internal": True}
    assert service(name)["networks"] == ["back"]
    assert "ports" not in service(name)


def test_nothing_is_published_beyond_this_machine():
    """Every published port is on loopback unless an operator says otherwise."""
    published = [port for each in ALL.values() for port in each.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert service("gateway")["ports"] == [f"127.0.0.1:{PORTS['gateway']}:{PORTS['gateway']}"]


@pytest.mark.parametrize("name", ["encoder", "reranker"])
def test_a_gpu_is_asked_for_and_insisted_on(name: str):
    """With the overlay a container without a GPU ends instead of computing on the processor (field failures 1, 78a)."""
    each = compose("gpu")["services"][name]
    assert each["environment"][f"TWOSTAGE_{name.upper()}_DEVICE"] == "cuda"
    assert each["build"]["args"]["DEVICE"] == "gpu"
    assert each["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    ]
    assert each["image"].endswith("-gpu")


def test_models_are_made_only_where_they_may_be_written():
    """Servers mount the models read-only, acquisition writes them, and the demo is made without any network."""
    assert all(service(name)["volumes"] == ["models:/models:ro"] for name in ("encoder", "reranker"))
    assert service("acquire-demo")["volumes"] == service("acquire-full")["volumes"] == ["models:/models"]
    assert service("acquire-demo")["network_mode"] == "none"
    for name in ("encoder", "reranker"):
        assert service(name)["environment"][f"TWOSTAGE_{name.upper()}_BUNDLE"] == f"/models/bundles/demo/{name}"


def test_files_that_are_mounted_are_there():
    """Every bind mount and build context of the repository exists."""
    sources = [
        mount["source"] if isinstance(mount, dict) else mount.split(":")[0]
        for each in ALL.values()
        for mount in each.get("volumes", [])
    ]
    ours = [source for source in sources if source.startswith(".")]
    assert len(ours) >= 6
    assert [source for source in ours if not (COMPOSE / source).exists()] == []


def test_prometheus_asks_every_server_where_it_answers():
    """Names and ports of the scrape configuration are those of services and settings."""
    jobs = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    by_name = {job["job_name"]: job["dns_sd_configs"][0] for job in jobs if "dns_sd_configs" in job}
    assert {name: (config["names"], config["port"]) for name, config in by_name.items()} == {
        name: ([name], METRICS_PORT) for name in SERVERS
    }
    fixed = [target for job in jobs for config in job.get("static_configs", []) for target in config["targets"]]
    assert {target.split(":")[0] for target in fixed} <= set(ALL)


@pytest.mark.parametrize("name", SERVERS)
def test_spans_go_to_the_collector_where_there_is_one(name: str, monkeypatch: pytest.MonkeyPatch):
    """With the overlay every server sends them to the port that the collector listens on, and without it to nobody."""
    told = [
        settings_of(name, compose(*overlays)["services"][name]["environment"], monkeypatch).otlp_endpoint
        for overlays in ((), ("observability",))
    ]
    receiver = yaml.safe_load((COMPOSE / "collector.yaml").read_text())["receivers"]["otlp"]["protocols"]["grpc"]
    assert told == [None, f"http://collector:{receiver['endpoint'].rpartition(':')[2]}"]


def test_grafana_finds_datasources_and_dashboards():
    """The provisioned folder is the one that is mounted, and datasources are services at their ports."""
    provisioning = COMPOSE / "grafana" / "provisioning"
    provider = yaml.safe_load((provisioning / "dashboards" / "dashboards.yaml").read_text())["providers"][0]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in service("grafana")["volumes"]
    sources = yaml.safe_load((provisioning / "datasources" / "datasources.yaml").read_text())["datasources"]
    assert [source["url"] for source in sources] == ["http://prometheus:9090", "http://jaeger:16686"]


def test_the_example_shows_every_default():
    """compose/example.env has the variables of the files, with the defaults of the files."""
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", (COMPOSE / "example.env").read_text(), re.MULTILINE))
    text = "".join((COMPOSE / name).read_text() for name in FILES)
    defaults = dict(re.findall(r"\$\{(\w+):-([^${}]*)\}", text)) | {"COMPOSE_FILE": "compose.yaml"}
    assert {name: default for name, default in defaults.items() if name in example} == example


def test_the_load_is_varied_open_and_not_cut_off():
    """Many texts of mixed length, at a rate, over several connections, by proto, waited for (field failures 69-72)."""
    options = dict(word.removeprefix("--").split("=", 1) for word in service("ghz")["command"] if "=" in word)
    assert "--async" in service("ghz")["command"]
    assert options["duration-stop"] == "wait"
    assert {"--disable-template-data", "--disable-template-functions"} <= set(service("ghz")["command"])
    assert service("load-report")["entrypoint"] == ["python", "-m", "cli.loading.ghz"]
    assert options["proto"] == "/protos/retrieval/gateway/v1/gateway.proto"
    assert options["call"] == "retrieval.gateway.v1.GatewayService/Search"
    assert int(options["rps"]) > 0
    assert int(options["connections"]) >= 4
    assert int(options["skipFirst"]) > 0
    lengths = [len(search["query"]) for search in json.loads((COMPOSE / "load" / "searches.json").read_text())]
    assert len(lengths) >= 200
    assert max(lengths) > 10 * min(lengths)


@pytest.mark.parametrize("path", sorted(COMPOSE.rglob("*.y*ml")), ids=str)
def test_every_other_file_is_yaml(path: Path):
    """No file of the folder is broken."""
    assert isinstance(yaml.safe_load(filled(path.read_text())), dict)
