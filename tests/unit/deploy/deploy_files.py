"""The files of an installation as data: compose merged as the engine merges it, Kubernetes documents, settings."""

import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_server.settings import EncoderSettings
from gateway.settings import GatewaySettings
from reranker_server.settings import RerankerSettings
from serving.settings import ServerSettings, load

REPOSITORY = Path(__file__).parents[3]
COMPOSE = REPOSITORY / "compose"
KUBERNETES = REPOSITORY / "kubernetes"
SETTINGS: dict[str, type[ServerSettings]] = {
    "encoder": EncoderSettings,
    "reranker": RerankerSettings,
    "gateway": GatewaySettings,
}
PORTS = {name: kind.model_fields["port"].default for name, kind in SETTINGS.items()}
HEALTH_PORTS = {"gateway": 50_061, "encoder": 50_062, "reranker": 50_063}
METRICS_PORT = 9464
VARIABLE = re.compile(r"\$\{(\w+)(?::-((?:[^${}]|\$\{[^}]*\})*))?\}")

Document = dict[str, Any]


def compose(*overlays: str) -> Document:
    """Return compose.yaml with overlays merged over it and variables replaced by their defaults."""
    merged: Document = {}
    for name in ("compose.yaml", *(f"compose.{overlay}.yaml" for overlay in overlays)):
        merged = _merged(merged, yaml.safe_load(filled((COMPOSE / name).read_text())))
    return merged


def filled(text: str) -> str:
    """Replace `${NAME:-default}` by the default, inner ones included."""
    while VARIABLE.search(text):
        text = VARIABLE.sub(lambda match: match[2] or "", text)
    return text


def settings_of(name: str, environment: Mapping[str, object], monkeypatch: pytest.MonkeyPatch) -> ServerSettings:
    """Load a server's settings as its container would; SystemExit where one is wrong or does not exist."""
    for variable in [each for each in os.environ if each.upper().startswith("TWOSTAGE_")]:
        monkeypatch.delenv(variable)
    # What `load` sets as well: like this it does not outlive the test.
    for variable, value in {**environment, "TOKENIZERS_PARALLELISM": "false"}.items():
        monkeypatch.setenv(variable, str(value))
    return load(SETTINGS[name])


def env_file(path: Path) -> dict[str, str]:
    """Read NAME=value lines."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def documents(directory: Path) -> Iterator[Document]:
    """Read every Kubernetes document of a directory; kustomizations are none."""
    for path in sorted(directory.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


def seconds(text: str) -> float:
    """Read a duration as compose writes it; only whole seconds are used here."""
    return float(text.removesuffix("s"))


def _merged(below: Document, above: Document) -> Document:
    result = deepcopy(below)
    for key, value in above.items():
        both = isinstance(result.get(key), dict) and isinstance(value, dict)
        result[key] = _merged(result[key], value) if both else value
    return result
