"""What ghz is given: files that name methods, protos and options that exist, and messages that the servers can read."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor

from benchmarks.ghz import make_data, make_questions
from cli.loading.questions import read_texts
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2
from retrieval.reranker.v1 import reranker_pb2

KIT = Path(make_data.HERE)
REPOSITORY = KIT.parents[1]
CALLS = sorted(KIT.glob("*.toml"))
FILES = {"encoder": encoder_pb2, "gateway": gateway_pb2, "reranker": reranker_pb2}
OPTIONS = {
    *("name", "host", "call", "proto", "import-paths", "data-file", "insecure", "timeout", "format"),
    *("concurrency", "connections", "total", "duration", "duration-stop", "skipFirst", "count-errors", "async", "rps"),
    *("load-schedule", "load-start", "load-end", "load-step", "load-step-duration"),
    *("disable-template-data", "disable-template-functions"),
}
"""Those of ghz's configuration that are used, spelt as ghz spells them."""


def options(path: Path) -> Mapping[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def method(call: str) -> MethodDescriptor:
    service, _, name = call.partition("/")
    module = FILES[service.split(".")[1]]
    return module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[name]


@pytest.mark.parametrize("path", CALLS, ids=lambda path: path.stem)
def test_every_call_names_what_exists(path: Path) -> None:
    """Field failure 69: method, proto, and a data file that the script makes; a misspelt option ghz would ignore."""
    told = options(path)
    assert set(told) <= OPTIONS
    assert method(told["call"]).name
    assert Path(told["data-file"]).stem in make_data.files("help")
    if path.stem != "search-reflection":
        assert (REPOSITORY / told["proto"]).is_file()
        assert told["import-paths"] == ["protos"]


@pytest.mark.parametrize("path", CALLS, ids=lambda path: path.stem)
def test_every_message_is_one_of_the_method(path: Path) -> None:
    """The servers can read each of them, under the names that protobuf's JSON has."""
    told = options(path)
    request = message_factory.GetMessageClass(method(told["call"]).input_type)
    messages = make_data.files("help")[Path(told["data-file"]).stem]
    parsed = [json_format.ParseDict(dict(one), request()) for one in messages]
    assert all(one.ByteSize() for one in parsed)


@pytest.mark.parametrize("path", CALLS, ids=lambda path: path.stem)
def test_profiles_are_what_they_say(path: Path) -> None:
    """Field failures 70, 72: open loops wait for nobody, timed runs for the last call, connections are several."""
    told = options(path)
    assert ("rps" in told or "load-schedule" in told) == told.get("async", False)
    assert told.get("duration-stop") == ("wait" if "duration" in told else None)
    assert 2 <= told["connections"] <= told["concurrency"]
    assert told["disable-template-data"], "a text with {{ would be a template"


def test_questions_are_many_and_of_many_lengths() -> None:
    """Field failure 72: hundreds of different texts, from a word to a passage, as the script still makes them."""
    texts = read_texts(KIT / "questions.jsonl")
    assert texts == make_questions.questions()
    assert len(set(texts)) == len(texts) >= 200
    lengths = sorted(map(len, texts))
    assert lengths[len(lengths) // 10] < 30
    assert lengths[-len(lengths) // 10] > 300


def test_data_files_are_arrays(tmp_path: Path) -> None:
    """The messages of an array are sent in turn; a lone object would be sent again and again."""
    make_data.main("mine", tmp_path)
    searches = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    assert len(searches) >= 200
    assert {one["collection"] for one in searches} == {"mine"}
    pools = json.loads((tmp_path / "rerank.json").read_text(encoding="utf-8"))
    assert {len(one["candidates"]) for one in pools} == {20}
    assert pools[0]["candidates"] != pools[1]["candidates"]
