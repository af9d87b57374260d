"""The Kubernetes files: valid, hardened, in agreement with settings, metrics and each other."""

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from deploy_files import (
    HEALTH_PORTS,
    KUBERNETES,
    METRICS_PORT,
    PORTS,
    SETTINGS,
    Document,
    documents,
    env_file,
    settings_of,
)
from prometheus_client import generate_latest

from gateway.stores.qdrant_probe import CORPUS_VERSION
from serving.metrics import BatchMetrics, ServerMetrics

BASE = KUBERNETES / "base"
VERSION = "1.37"
SERVERS = tuple(PORTS)
MODELS = ("encoder", "reranker")
NAME = "app.kubernetes.io/name"
DOCUMENTS = list(documents(BASE))
SCALED = list(documents(KUBERNETES / "components" / "scaling"))


def one(kind: str, name: str, among: list[Document] = DOCUMENTS) -> Document:
    """Return the one document of a kind and a name."""
    (found,) = [each for each in among if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod(name: str, among: list[Document] = DOCUMENTS) -> Document:
    """Return the pod's specification of a deployment."""
    return one("Deployment", name, among)["spec"]["template"]["spec"]


def container(name: str) -> Document:
    """Return the only container of a deployment."""
    (found,) = pod(name)["containers"]
    return found


def rendered(overlay: str) -> list[Document]:
    """Build an overlay with kustomize, by itself or in kubectl; skip where neither is installed."""
    tool = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if shutil.which(tool[0]) is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    command = [*tool, str(KUBERNETES / "overlays" / overlay)]
    return list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_document_is_what_kubernetes_allows(document: Document):
    """No document has a field or a value that the published schemas do not know."""
    kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("path", sorted(KUBERNETES.rglob("kustomization.yaml")), ids=str)
def test_a_kustomization_names_files_that_are_there(path: Path):
    """Resources and sources of settings exist."""
    kustomization = yaml.safe_load(path.read_text())
    envs = [env for each in kustomization.get("configMapGenerator", []) for env in each.get("envs", [])]
    named = [*kustomization["resources"], *envs]
    assert [name for name in named if not (path.parent / name).exists()] == []
    beside = {each.name for each in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
    assert beside <= set(kustomization["resources"])


@pytest.mark.parametrize("name", SERVERS)
def test_every_setting_exists_and_is_right(name: str, monkeypatch: pytest.MonkeyPatch):
    """The server starts with exactly these variables, and listens where the pod says."""
    settings = settings_of(name, env_file(BASE / "settings" / f"{name}.env"), monkeypatch)
    ports = {each["name"]: each["containerPort"] for each in container(name)["ports"]}
    assert ports == {"grpc": settings.port, "metrics": settings.metrics_port, "health": settings.health_port}
    assert ports == {"grpc": PORTS[name], "metrics": METRICS_PORT, "health": HEALTH_PORTS[name]}


@pytest.mark.parametrize("name", SERVERS)
def test_a_pod_is_given_the_time_to_drain(name: str, monkeypatch: pytest.MonkeyPatch):
    """Calls are taken until endpoints are gone, end in peace, and the pod is killed only then (field failure 59)."""
    settings = settings_of(name, env_file(BASE / "settings" / f"{name}.env"), monkeypatch)
    ending = pod(name)["terminationGracePeriodSeconds"]
    assert settings.drain_delay_s >= 5
    assert settings.drain_delay_s + settings.grace_s + 5 <= ending


@pytest.mark.parametrize("name", SERVERS)
def test_names_and_labels_meet(name: str):
    """Deployment, service and disruption budget select the pods that there are, by ports that these have."""
    labels = one("Deployment", name)["spec"]["template"]["metadata"]["labels"]
    assert labels == {NAME: name}
    assert one("Deployment", name)["spec"]["selector"]["matchLabels"] == labels
    assert one("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == labels
    service = one("Service", name)["spec"]
    assert service["selector"] == labels
    assert {port["name"]: port["port"] for port in service["ports"]} == {"grpc": PORTS[name], "metrics": METRICS_PORT}
    assert {port["targetPort"] for port in service["ports"]} <= {each["name"] for each in container(name)["ports"]}
    assert container(name)["envFrom"] == [{"configMapRef": {"name": f"{name}-settings"}}]


@pytest.mark.parametrize("name", SERVERS)
def test_a_service_has_an_address_per_pod(name: str):
    """Callers balance calls themselves: a ClusterIP would pin a connection to one pod (field failure 7)."""
    assert one("Service", name)["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("name", MODELS)
def test_the_gateway_balances_over_the_headless_names(name: str):
    """Targets are DNS names of the services, and connections age so that new pods are found (field failure 8)."""
    gateway = env_file(BASE / "settings" / "gateway.env")
    assert gateway[f"TWOSTAGE_GATEWAY_{name.upper()}_TARGET"] == f"dns:///{name}:{PORTS[name]}"
    settings = env_file(BASE / "settings" / f"{name}.env")
    assert float(settings[f"TWOSTAGE_{name.upper()}_MAX_CONNECTION_AGE_S"]) <= 60


@pytest.mark.parametrize("name", SERVERS)
def test_probes_neither_hurry_a_start_nor_kill_a_busy_server(name: str):
    """All three ask gRPC health; a start has minutes, and so has a server that is slow to answer (field failure 5)."""
    each = container(name)
    kinds = ("startupProbe", "readinessProbe", "livenessProbe")
    assert [each[kind]["grpc"] for kind in kinds] == [{"port": HEALTH_PORTS[name]}] * 3
    patience = {kind: each[kind]["periodSeconds"] * each[kind]["failureThreshold"] for kind in kinds}
    assert patience["startupProbe"] >= (300 if name in MODELS else 60)
    assert patience["livenessProbe"] >= 120
    assert patience["readinessProbe"] <= 10


@pytest.mark.parametrize("name", SERVERS)
def test_every_pod_is_confined(name: str):
    """No root, no capabilities, no token, no writable image, the runtime's seccomp profile, limits on what it uses."""
    each = pod(name)
    assert each["securityContext"]["runAsNonRoot"] is True
    assert each["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert each["automountServiceAccountToken"] is False
    assert each["enableServiceLinks"] is False
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    resources = container(name)["resources"]
    assert resources["requests"] == resources["limits"]
    mounted = {mount["name"] for mount in container(name)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in each["volumes"]}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_where_the_settings_say(name: str):
    """The bundle is a directory of the image that is mounted, read-only; the gpu settings need nothing else."""
    assert env_file(BASE / "settings" / f"{name}.env")[f"TWOSTAGE_{name.upper()}_BUNDLE"] == f"/models/{name}"
    mounts = {mount["name"]: mount for mount in container(name)["volumeMounts"]}
    assert mounts["models"] == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert f"COPY --chown=10001:10001 {name} /{name}\n" in (KUBERNETES / "bundles.Dockerfile").read_text()


def policies_for(name: str) -> list[Document]:
    """Return the network policies that select a server's pods by its name."""

    def selects(selector: Document) -> bool:
        expressions = selector.get("matchExpressions", [])
        return selector.get("matchLabels", {}).get(NAME) == name or any(name in each["values"] for each in expressions)

    return [each for each in DOCUMENTS if each["kind"] == "NetworkPolicy" and selects(each["spec"]["podSelector"])]


def test_what_is_not_allowed_is_forbidden():
    """One policy selects every pod and allows nothing."""
    assert one("NetworkPolicy", "nothing-else")["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("name", [*MODELS, "qdrant"])
def test_only_the_gateway_calls_models_and_documents(name: str):
    """Calls come from the gateway, metrics are read from monitoring, and models reach nothing by themselves."""
    callers = [source for each in policies_for(name) for rule in each["spec"]["ingress"] for source in rule["from"]]
    pods = {source["podSelector"]["matchLabels"][NAME] for source in callers if "podSelector" in source}
    others = [source["namespaceSelector"]["matchLabels"] for source in callers if "namespaceSelector" in source]
    assert pods == ({"gateway", "qdrant"} if name == "qdrant" else {"gateway"})
    assert others == [{"kubernetes.io/metadata.name": "monitoring"}]
    if name in MODELS:
        assert [each for each in policies_for(name) if "egress" in each["spec"]] == []


@pytest.mark.parametrize("name", SERVERS)
def test_the_port_of_the_probes_is_for_the_node_alone(name: str):
    """No policy lets another pod reach the port that never has TLS."""
    rules = [rule for each in policies_for(name) for rule in each["spec"]["ingress"]]
    opened = {port["port"] for rule in rules for port in rule["ports"]}
    assert opened
    assert opened & {"health", HEALTH_PORTS[name]} == set()


def test_the_gateway_reaches_what_it_calls_and_nothing_else():
    """Its ways out are both models, Qdrant and DNS, at the ports of the settings."""
    (policy,) = [each for each in policies_for("gateway") if "egress" in each["spec"]]
    ways = [(rule["to"][0], [port["port"] for port in rule["ports"]]) for rule in policy["spec"]["egress"]]
    to_pods = {to["podSelector"]["matchLabels"][NAME]: ports for to, ports in ways if "podSelector" in to}
    assert to_pods == {"encoder": [PORTS["encoder"]], "reranker": [PORTS["reranker"]], "qdrant": [6334]}
    assert [ports for to, ports in ways if "podSelector" not in to] == [[53, 53]]


def test_the_policy_that_lets_the_gateway_out_to_a_writer_is_valid():
    """The example of docs/deploy.md is a policy, of the gateway's pods, which lets nothing in and opens one port."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (KUBERNETES.parent / "docs" / "deploy.md").read_text(), re.DOTALL)
    policy = yaml.safe_load(example)
    kubernetes_validate.validate(policy, VERSION, strict=True)
    assert policy["spec"]["podSelector"] == one("NetworkPolicy", "gateway")["spec"]["podSelector"]
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert [rule["ports"] for rule in policy["spec"]["egress"]] == [[{"port": 443, "protocol": "TCP"}]]


@pytest.mark.parametrize("name", SERVERS)
def test_spans_go_to_monitoring_where_the_component_is_added(name: str, monkeypatch: pytest.MonkeyPatch):
    """Every server is told an endpoint, and lets itself out to that namespace and port, and to DNS."""
    component = yaml.safe_load((KUBERNETES / "components" / "tracing" / "kustomization.yaml").read_text())
    literals = {each["name"]: each["literals"] for each in component["configMapGenerator"]}[f"{name}-settings"]
    environment = env_file(BASE / "settings" / f"{name}.env") | dict(each.split("=", 1) for each in literals)
    endpoint = urlsplit(settings_of(name, environment, monkeypatch).otlp_endpoint)
    (policy,) = documents(KUBERNETES / "components" / "tracing")
    kubernetes_validate.validate(policy, VERSION, strict=True)
    assert name in policy["spec"]["podSelector"]["matchExpressions"][0]["values"]
    collector, names = policy["spec"]["egress"]
    assert collector["to"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": (endpoint.hostname or "").split(".")[1]}}}
    ]
    assert collector["ports"] == [{"port": endpoint.port}]
    assert [port["port"] for port in names["ports"]] == [53, 53]


@pytest.mark.parametrize("name", MODELS)
def test_replicas_follow_metrics_that_exist(name: str):
    """Both triggers read what the server shows: tokens that wait, and the time that rows have waited."""
    metrics = ServerMetrics(name)
    BatchMetrics(metrics)
    stage = {"encoder": "encode", "reranker": "rerank"}[name]
    metrics.observe_stage(stage, {"queue": 1})
    page = generate_latest(metrics.registry).decode()
    spec = one("ScaledObject", name, SCALED)["spec"]
    tokens, wait = (trigger["metadata"]["query"] for trigger in spec["triggers"])
    assert f"\n{name}_waiting_tokens " in page
    assert f"{name}_waiting_tokens{{" in tokens
    assert f'\n{name}_stage_seconds_bucket{{le="0.1",part="queue",stage="{stage}"}} ' in page
    assert all(part in wait for part in (f"{name}_stage_seconds_bucket", f'stage="{stage}"', 'part="queue"'))
    assert spec["scaleTargetRef"] == {"name": name}
    assert 1 < spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_an_overlay_is_complete(overlay: str):
    """Built, every document is valid, every image has a version, and settings have become volumes of their own name."""
    built = rendered(overlay)
    for document in built:
        kubernetes_validate.validate(document, VERSION, strict=True)
        assert document["metadata"]["namespace"] == "twostage"
    for name in SERVERS:
        (each,) = pod(name, built)["containers"]
        assert each["image"].startswith(f"twostage/{name}:0.")
        settings = one("ConfigMap", each["envFrom"][0]["configMapRef"]["name"], built)["data"]
        assert settings.keys() == env_file(BASE / "settings" / f"{name}.env").keys()
        assert one("Deployment", name, built)["spec"]["replicas"] == 2


@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_is_asked_for_and_insisted_on(name: str, monkeypatch: pytest.MonkeyPatch):
    """The gpu overlay limits each pod to a GPU, says cuda, and runs the image that has it (field failure 1)."""
    built = rendered("gpu")
    (each,) = pod(name, built)["containers"]
    settings = one("ConfigMap", each["envFrom"][0]["configMapRef"]["name"], built)["data"]
    assert settings_of(name, settings, monkeypatch).model_dump()["device"] == "cuda"
    assert each["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert each["image"].endswith("-gpu")
    volumes = {volume["name"]: volume for volume in pod(name, built)["volumes"]}
    assert volumes["models"]["image"]["reference"] == "twostage/bundles:full-1"


def test_qdrant_is_where_gateway_and_policies_look():
    """The chart's values keep the key in the secret that the gateway mounts, and the version of compose and docs."""
    values = yaml.safe_load((KUBERNETES / "qdrant" / "values.yaml").read_text())
    secret = values["apiKey"]["valueFrom"]["secretKeyRef"]
    (mounted,) = [volume["secret"] for volume in pod("gateway")["volumes"] if "secret" in volume]
    assert (secret["name"], secret["key"]) == (mounted["secretName"], mounted["items"][0]["key"])
    gateway = env_file(BASE / "settings" / "gateway.env")
    assert gateway["TWOSTAGE_GATEWAY_QDRANT_API_KEY_FILE"] == "/run/secrets/qdrant/api-key"
    for path in ("compose/compose.yaml", "docs/deploy.md"):
        named = re.findall(r"qdrant/qdrant:([\w.-]+)", (KUBERNETES.parent / path).read_text())
        assert set(named) == {f"{values['image']['tag']}-unprivileged"}, path
    assert set(SETTINGS) == set(SERVERS)


def test_qdrant_is_new_enough_for_words_of_keys_with_a_scope():
    """The version that is deployed is one that the gateway takes for lexical searches of documents of one tenant."""
    tag = yaml.safe_load((KUBERNETES / "qdrant" / "values.yaml").read_text())["image"]["tag"]
    assert tuple(map(int, tag.removeprefix("v").split(".")[:2])) >= CORPUS_VERSION
