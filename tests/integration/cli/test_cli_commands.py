"""index, search, collections and doctor against the running system."""

import json
from pathlib import Path
from typing import Any

import pytest
from up_process import UpProcess, twostage

pytestmark = pytest.mark.slow

LINES = [
    '{"id": 1, "text": "The cat sleeps on the warm stove.", "title": "Cats", "age": 3}',
    '{"id": "b", "text": "Invoices are sent on the first day of every month.", "title": "Invoices"}',
    '{"id": "c", "text": "A lone surrogate \\ud800 in a text about parking.", "title": "Parking \\udfff"}',
]
BAD = ["not json", '{"id": 9}', '{"id": -1, "text": "x"}', '{"id": 8, "text": "   "}', '{"id": 1, "text": "again"}']


@pytest.fixture(scope="module")
def indexed(running: UpProcess, tmp_path_factory: pytest.TempPathFactory) -> UpProcess:
    """The running system with three documents in the collection `small`."""
    file = tmp_path_factory.mktemp("index") / "small.jsonl"
    file.write_text("\n".join(LINES) + "\n")
    result = twostage("index", str(file), "--collection", "small", *place(running))
    assert result.returncode == 0, result.stderr
    return running


def place(up: UpProcess) -> tuple[str, ...]:
    return ("--gateway", up.gateway, "--home", str(up.home))


def search(up: UpProcess, *arguments: str) -> Any:
    result = twostage("search", "When do you send the bill?", "-c", "small", "--gateway", up.gateway, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


def test_search_shows_ranks_before_and_after(indexed: UpProcess) -> None:
    """The table names each document, where it stood and stands, and the bar where the time went."""
    shown = search(indexed)
    first = next(line for line in shown.splitlines() if "Invoices" in line)
    before, arrow, after = first.split()[:3]
    assert (before.isdecimal(), arrow, after) == (True, "→", "1")
    for word in ("rank", "logit", "encode", "search", "rerank", "other", "inside rerank: queue", "tokenize"):
        assert word in shown


def test_search_as_json_is_one_document(indexed: UpProcess) -> None:
    """Programs get ids of their own type, every payload field, and spans that add up."""
    found = search(indexed, "--json")
    best = found["hits"][0]
    assert (best["id"], best["rerank_rank"], best["payload"]["title"]) == ("b", 1, "Invoices")
    assert {hit["id"] for hit in found["hits"]} == {1, "b", "c"}
    times = found["timings_ms"]
    assert times["dense"] + times["rerank"]["total"] + times["other"] == pytest.approx(times["total"], abs=1e-6)
    assert found["provenance"]["encoder"]["digest"].startswith("sha256:")


def test_streamed_search_as_json_has_both_orders(indexed: UpProcess) -> None:
    """The order of the first stage comes unscored, the final one scored."""
    found = search(indexed, "--json", "--stream")
    assert [hit["rerank_rank"] for hit in found["retrieved"]["hits"]] == [None, None, None]
    assert [hit["rerank_rank"] for hit in found["final"]["hits"]] == [1, 2, 3]


def test_search_without_reranking_shows_retrieval_order(indexed: UpProcess) -> None:
    """Where nothing was reranked no rank is made up."""
    found = search(indexed, "--json", "--rerank", "off")
    assert [(hit["retrieval_rank"], hit["rerank_rank"], hit["logit"]) for hit in found["hits"]] == [
        (1, None, None),
        (2, None, None),
        (3, None, None),
    ]


def test_malformed_and_refused_lines_are_named(running: UpProcess) -> None:
    """A bad line costs itself only: the others are stored, the bad ones listed by number, and the status says so."""
    lines = "\n".join([*LINES, "", *BAD]).encode()
    options = ("--collection", "mixed", *place(running))
    result = twostage("index", "-", *options, "--json", stdin=lines)
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert (report["stored_count"], report["document_count"], report["missing_count"]) == (3, 3, 0)
    assert [line["number"] for line in report["malformed"]] == [5, 6, 7, 9]
    assert [(line["number"], line["reason"]) for line in report["refused"]] == [(8, "TEXT_BLANK")]
    assert report["surrogate_count"] == 2


def test_malformed_lines_are_printed_for_people(running: UpProcess) -> None:
    """Without --json the problems are on standard error, one line each."""
    result = twostage("index", "-", "-c", "printed", *place(running), stdin="\n".join(BAD).encode())
    assert result.returncode == 1
    assert "line 1: malformed: not JSON" in result.stderr
    assert "line 4: refused: TEXT_BLANK" in result.stderr
    assert "1 of 5 documents stored" in result.stdout


def test_surrogates_become_replacement_characters(indexed: UpProcess) -> None:
    """Field failure 41: a text that no UTF-8 exists for is stored with U+FFFD instead of breaking the client."""
    parking = next(hit for hit in search(indexed, "--json")["hits"] if hit["id"] == "c")
    assert "surrogate \N{REPLACEMENT CHARACTER} in" in parking["text"]
    assert parking["payload"]["title"] == "Parking \N{REPLACEMENT CHARACTER}"


def test_recreate_drops_what_was_there(running: UpProcess) -> None:
    """A collection made anew holds the new file and nothing else."""
    options = ("-c", "anew", *place(running), "--json")
    twostage("index", "-", *options, stdin="\n".join(LINES).encode())
    report = json.loads(twostage("index", "-", *options, "--recreate", stdin=LINES[0].encode()).stdout)
    assert report["document_count"] == 1


def test_indexing_again_changes_nothing(indexed: UpProcess, tmp_path: Path) -> None:
    """A rerun replaces documents by id, so that it is safe after a crash."""
    file = tmp_path / "again.jsonl"
    file.write_text("\n".join(LINES[:2]))
    result = twostage("index", str(file), "-c", "small", *place(indexed), "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["document_count"] == 3


def test_collections_are_made_listed_described_and_dropped(running: UpProcess) -> None:
    """The life of a collection, each step by its own command."""
    at = ("--gateway", running.gateway)
    assert twostage("collections", "create", "life", *at).returncode == 0
    assert twostage("collections", "create", "life", *at).returncode == 1
    listed = json.loads(twostage("collections", "list", *at, "--json").stdout)
    assert ("life", 0, 384) in [(found["name"], found["document_count"], found["dimension"]) for found in listed]
    described = json.loads(twostage("collections", "describe", "life", *at, "--json").stdout)
    assert described["encoder"]["id"] == "intfloat/multilingual-e5-small"
    assert twostage("collections", "drop", "life", *at, stdin=b"n\n").returncode == 1
    assert twostage("collections", "drop", "life", "--yes", *at).returncode == 0
    gone = twostage("collections", "describe", "life", *at)
    assert gone.returncode == 1
    assert gone.stderr.startswith("error: NOT_FOUND COLLECTION_NOT_FOUND: ")


def test_a_collection_is_made_as_asked_and_found_by_its_alias(running: UpProcess) -> None:
    """Parameters given at creation are those described; an alias describes its collection until it is deleted."""
    at = ("--gateway", running.gateway)
    asked = ("--hnsw-m", "24", "--quantization", "int8", "--index", "lang:keyword", "--index", "at.day:datetime")
    assert twostage("collections", "create", "tuned", *asked, *at).returncode == 0
    assert twostage("collections", "alias", "front", "tuned", *at).returncode == 0
    described = json.loads(twostage("collections", "describe", "front", *at, "--json").stdout)
    assert (described["name"], described["aliases"], described["status"]) == ("tuned", ["front"], "green")
    kept = described["parameters"]
    assert (kept["hnsw_m"], kept["hnsw_ef_construct"], kept["quantization"]) == (24, 128, "QUANTIZATION_INT8")
    assert [(one["key"], one["type"]) for one in kept["payload_indexes"]] == [
        ("lang", "PAYLOAD_INDEX_TYPE_KEYWORD"),
        ("at.day", "PAYLOAD_INDEX_TYPE_DATETIME"),
    ]
    assert "int8" in twostage("collections", "describe", "front", *at).stdout
    assert twostage("collections", "alias", "front", "--delete", *at).returncode == 0
    assert twostage("collections", "describe", "front", *at).returncode == 1
    assert twostage("collections", "drop", "tuned", "--yes", *at).returncode == 0


def test_what_no_collection_can_be_is_refused(running: UpProcess) -> None:
    """An index without a known type, two shards in the embedded store, and an alias without a target are refused."""
    at = ("--gateway", running.gateway)
    assert twostage("collections", "create", "odd", "--index", "lang", *at).returncode == 2
    shards = twostage("collections", "create", "odd", "--shards", "2", *at)
    assert shards.returncode != 0
    assert "PARAMETER_UNSUPPORTED" in shards.stderr
    assert twostage("collections", "alias", "front", *at).returncode == 2


def test_doctor_tells_who_holds_the_ports(running: UpProcess) -> None:
    """A running system is recognised by what it says of itself, and a second one would not start."""
    result = twostage("doctor", *running.options, "--json", "--timeout", "30")
    assert result.returncode == 1
    report = json.loads(result.stdout)
    gateway, encoder, reranker = (found["value"] for found in report["sections"]["ports"])
    assert gateway.startswith("taken: SERVING")
    assert "intfloat/multilingual-e5-small on cpu, sha256:" in encoder
    assert "twostage/demo-reranker on cpu, sha256:" in reranker
    assert not report["ready"]


def test_doctor_is_content_with_free_ports(home: Path, tmp_path: Path) -> None:
    """Where nothing stands in the way the status is 0 and the device is the one a session really took."""
    result = twostage("doctor", *UpProcess(home, tmp_path / "log").options, "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, report["ready"]) == (0, True)
    (device,) = [found for found in report["sections"]["models of profile demo"] if found["name"] == "device"]
    assert device["value"].startswith(("cpu, ", "cuda, "))


def test_nothing_there_is_said_in_two_lines() -> None:
    """A gateway that does not answer gives status 69, one line of cause and one of remedy."""
    result = twostage("search", "x", "-c", "small", "--gateway", "127.0.0.1:1")
    assert result.returncode == 69
    assert result.stderr.splitlines() == [
        "error: UNAVAILABLE: no gateway answers at 127.0.0.1:1",
        "  -> start one with `twostage up`, or look at --gateway and --tls",
    ]


def test_models_are_listed_and_verified(home: Path) -> None:
    """The models that are here are listed with what they are, and pass their golden outputs."""
    listed = json.loads(twostage("models", "list", "--home", str(home), "--json").stdout)
    assert [found["kind"] for found in listed] == ["encoder", "reranker"]
    assert listed[0]["weights"] == "4-bit embedding table, fp32 linear weights"
    path = home / "bundles" / "demo" / "encoder"
    checked = json.loads(twostage("models", "verify", str(path), "--json").stdout)
    assert [(form["precision"], form["good"], form["digest"]) for form in checked] == [
        ("fp32", True, listed[0]["digest"]),
        ("int8", True, listed[0]["digest"]),
    ]


def test_a_damaged_model_fails_verification(home: Path, tmp_path: Path) -> None:
    """A bundle whose files are not what its manifest says is bad, by its reason, with status 1."""
    source, damaged = home / "bundles" / "demo" / "encoder", tmp_path / "damaged"
    damaged.mkdir()
    for file in source.iterdir():
        (damaged / file.name).symlink_to(file)
    (damaged / "tokenizer.json").unlink()
    text = (source / "tokenizer.json").read_bytes()
    (damaged / "tokenizer.json").write_bytes(text[:-1] + bytes([text[-1] ^ 1]))
    result = twostage("models", "verify", str(damaged), "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)[0]["reason"] == "BUNDLE_DIGEST_MISMATCH"
