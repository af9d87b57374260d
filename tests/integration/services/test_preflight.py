"""`twostage preflight` with tiny bundles: what it says, how it exits, and that it leaves nothing behind."""

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from factories import flip_byte, tiny_encoder_bundle, tiny_reranker_bundle
from rigs import free_port
from up_process import TWOSTAGE

from cli.addresses import free_ports
from serving.bundle import MODEL_NAME
from serving.cpu import usable_cpus

pytestmark = pytest.mark.slow


@dataclass
class Checked:
    status: int
    out: str
    err: str

    @property
    def states(self) -> Mapping[str, Mapping[str, str]]:
        """State by section and name."""
        sections = json.loads(self.out)["sections"]
        return {name: {one["name"]: one["state"] for one in found} for name, found in sections.items()}

    def finding(self, section: str, name: str) -> Any:
        return next(one for one in json.loads(self.out)["sections"][section] if one["name"] == name)


class Place:
    """A directory with two bundles, and the environment of servers that would use them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {
            "TWOSTAGE_ENCODER_BUNDLE": str(tiny_encoder_bundle(directory / "encoder").path),
            "TWOSTAGE_RERANKER_BUNDLE": str(tiny_reranker_bundle(directory / "reranker").path),
            "TWOSTAGE_GATEWAY_STORE_PATH": str(directory / "store"),
            **{f"TWOSTAGE_{name}_HOST": "127.0.0.1" for name in ("ENCODER", "RERANKER", "GATEWAY")},
            **{
                f"TWOSTAGE_{name}_PORT": str(port)
                for name, port in zip(("ENCODER", "RERANKER", "GATEWAY"), free_ports(3), strict=True)
            },
        }

    def check(self, *arguments: str, **env: str) -> Checked:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TWOSTAGE_")}
        done = subprocess.run(
            [*TWOSTAGE, "preflight", *arguments],
            env={**clean, **self.env, **env},
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        return Checked(status=done.returncode, out=done.stdout, err=done.stderr)

    def tree(self) -> Sequence[tuple[str, int, int]]:
        """Every file and directory, with size and time of its last change."""
        places = [self.directory, *self.directory.rglob("*")]
        return sorted((str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in places)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The servers' place of one test."""
    return Place(tmp_path)


def test_servers_that_would_start_are_said_to_and_nothing_is_written(place: Place) -> None:
    """Both models were loaded, met their golden outputs and ran a batch, and every file and directory is as before."""
    before = place.tree()
    checked = place.check("--json")
    assert checked.status == 0, checked.err + checked.out
    assert place.tree() == before
    assert json.loads(checked.out)["ready"]
    for kind in ("encoder", "reranker"):
        assert set(checked.states[kind]) >= {"bundle", "device", "precision", "golden outputs", "batches"}
        assert checked.finding(kind, "device")["value"].startswith("cpu (asked for auto)")
    assert "MB needed" in checked.finding("machine", "memory")["value"]
    assert checked.finding("gateway", "embedded store")["value"].startswith(f"{place.directory}/store, to be made")


def test_the_table_is_for_people(place: Place) -> None:
    """Only the server that was named is checked, and the last line is the verdict."""
    checked = place.check("encoder")
    assert checked.status == 0, checked.err
    assert checked.out.strip().endswith("encoder can start here")
    assert "reranker" not in checked.out
    assert "embedded store" not in checked.out


def test_every_wrong_setting_of_every_server_is_named(place: Place) -> None:
    """Status 2, as the servers themselves would end, and nothing was loaded."""
    checked = place.check(TWOSTAGE_ENCODER_THREADS="many", TWOSTAGE_RERANKER_PROT="1", TWOSTAGE_GATEWAY_STORE="other")
    assert (checked.status, checked.out) == (2, "")
    for name in ("TWOSTAGE_ENCODER_THREADS", "TWOSTAGE_RERANKER_PROT", "TWOSTAGE_GATEWAY_STORE"):
        assert name in checked.err


def test_a_damaged_bundle_stops_one_server(place: Place) -> None:
    """The digest is checked, the damage named, and the other model tried all the same."""
    flip_byte(place.directory / "reranker", MODEL_NAME)
    checked = place.check("encoder", "reranker", "--json")
    assert checked.status == 1
    assert "BUNDLE_DIGEST_MISMATCH" in checked.finding("reranker", "model")["value"]
    assert checked.states["encoder"]["batches"] == "good"


def test_a_device_that_is_not_here_is_named_with_what_is_missing(place: Place) -> None:
    """CUDA that was asked for by name is never replaced: neither its driver nor its onnxruntime are here."""
    checked = place.check("encoder", "--json", TWOSTAGE_ENCODER_DEVICE="cuda")
    assert checked.status == 1
    assert "DEVICE_UNAVAILABLE" in checked.finding("encoder", "model")["value"]
    if not Path("/proc/driver/nvidia/version").is_file():
        assert checked.states["encoder"]["driver"] == "bad"


def test_ports_are_free_and_wanted_once(place: Place) -> None:
    """A port that somebody listens on, and one that two servers want, each would stop a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken, twice = str(listener.getsockname()[1]), str(free_port())
        ports = {"TWOSTAGE_ENCODER_PORT": twice, "TWOSTAGE_GATEWAY_PORT": twice, "TWOSTAGE_ENCODER_HEALTH_PORT": taken}
        checked = place.check("encoder", "gateway", "--json", **ports)
    assert checked.status == 1
    found = {one["name"]: one["value"] for one in json.loads(checked.out)["sections"]["network"]}
    assert found == {
        f"encoder port {twice}": "wanted twice",
        f"gateway port {twice}": "wanted twice",
        f"encoder health port {taken}": "taken",
    }


def test_more_threads_than_processors_are_worth_knowing(place: Place) -> None:
    """It works, only slower: a note, and status 0."""
    checked = place.check("encoder", "--json", TWOSTAGE_ENCODER_THREADS=str(usable_cpus() + 1))
    assert (checked.status, checked.states["machine"]["encoder threads"]) == (0, "note")


def test_certificates_and_keys_that_cannot_be_read_stop_a_server(place: Place) -> None:
    """They are read as the servers read them."""
    missing = str(place.directory / "none.pem")
    files = {"TWOSTAGE_GATEWAY_TLS_CERT_FILE": missing, "TWOSTAGE_GATEWAY_TLS_KEY_FILE": missing}
    checked = place.check("gateway", "--json", **files)
    assert (checked.status, checked.states["network"]["gateway secrets"]) == (1, "bad")


@pytest.mark.parametrize(
    ("setting", "content"),
    [
        ("API_KEYS_FILE", '[keys]\n[scopes.a]\ncollections = { a = "admin" }\n'),
        ("BACKEND_CA_FILE", "no certificate"),
        ("BACKEND_API_KEY_FILE", ""),
        ("WRITER_API_KEY_FILE", "two words"),
    ],
)
def test_everything_that_the_gateway_reads_at_the_start_is_read(place: Place, setting: str, content: str) -> None:
    """A scope that is none, and files for those whom the gateway calls, would stop it as well."""
    file = place.directory / "file"
    file.write_text(content)
    checked = place.check("gateway", "--json", **{f"TWOSTAGE_GATEWAY_{setting}": str(file)})
    assert (checked.status, checked.states["network"]["gateway secrets"]) == (1, "bad")


def test_a_gateway_needs_no_packages_of_models(place: Place) -> None:
    """Its image has no onnxruntime, which is looked for where a model server is checked."""
    assert "onnxruntime" not in place.check("gateway", "--json").states["installed"]
    assert "onnxruntime" in place.check("encoder", "--json").states["installed"]


def test_a_qdrant_that_does_not_answer_stops_the_gateway(place: Place) -> None:
    """A gateway would look for it again at every call; before a deployment its absence is a failure."""
    url = f"http://127.0.0.1:{free_port()}"
    checked = place.check("gateway", "--json", TWOSTAGE_GATEWAY_STORE="qdrant", TWOSTAGE_GATEWAY_QDRANT_URL=url)
    assert (checked.status, checked.states["gateway"]["Qdrant"]) == (1, "bad")


def test_a_store_that_cannot_be_written_stops_the_gateway(place: Place) -> None:
    """Where the directory's place is a file nothing can be made below it."""
    (place.directory / "file").write_text("")
    checked = place.check("gateway", "--json", TWOSTAGE_GATEWAY_STORE_PATH=str(place.directory / "file" / "store"))
    assert (checked.status, checked.states["gateway"]["embedded store"]) == (1, "bad")
