"""What is asked: texts from files, and the requests that are made of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from google.protobuf.message import Message

from cli.search import MODES, RerankMode
from cli.text_file import read_lines
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2
from retrieval.reranker.v1 import reranker_pb2
from serving.errors import Misconfigured

Method = Literal["search", "encode", "rerank"]
Priority = Literal["interactive", "bulk"]
FIELDS = ("query", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What every request has in common."""

    method: Method
    collection: str = ""
    pool_size: int = 20
    """Candidates: taken from the store by a search, sent along by a rerank."""
    top_k: int = 5
    priority: Priority = "interactive"
    rerank: RerankMode = "required"


def read_texts(path: Path) -> list[str]:
    """Read a file of texts: one a line, or JSON lines whose `query` or else `text` is meant.

    Raises:
        Misconfigured: It cannot be read, or holds no text.
    """
    lines = read_lines(path, reason="QUESTIONS")
    texts = [_text(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise Misconfigured("QUESTIONS", f"{path} holds no text")
    return texts


def _text(path: Path, number: int, line: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise Misconfigured("QUESTIONS", f"{path}, line {number}: not JSON") from error
    found = next((fields[name] for name in FIELDS if isinstance(fields.get(name), str)), None)
    if found is None:
        raise Misconfigured("QUESTIONS", f"{path}, line {number}: neither query nor text")
    return str(found)


def requests_of(ask: Ask, questions: Sequence[str], passages: Sequence[str]) -> list[Message]:
    """Return one request per question, to be sent in turn.

    Args:
        ask: What they have in common.
        questions: At least one.
        passages: The candidates of a rerank: `pool_size` of them in turn for each question.

    Raises:
        Misconfigured: Something is missing for the method.
    """
    if ask.method == "search":
        if not ask.collection:
            raise Misconfigured("COLLECTION", "a search needs --collection")
        return [_search(ask, question) for question in questions]
    if ask.method == "encode":
        return [_encode(ask, question) for question in questions]
    if not passages:
        raise Misconfigured("PASSAGES", "rerank needs --passages, a file of candidates' texts")
    return [_rerank(ask, question, number, passages) for number, question in enumerate(questions)]


def _search(ask: Ask, question: str) -> Message:
    return gateway_pb2.SearchRequest(
        query=question,
        collection=ask.collection,
        pool_size=ask.pool_size,
        top_k=min(ask.top_k, ask.pool_size),
        rerank=MODES[ask.rerank],
        priority=gateway_pb2.Priority.Value(f"PRIORITY_{ask.priority.upper()}"),
    )


def _encode(ask: Ask, question: str) -> Message:
    return encoder_pb2.EncodeRequest(
        texts=[question],
        input_type=encoder_pb2.INPUT_TYPE_QUERY,
        vector_format=encoder_pb2.VECTOR_FORMAT_BYTES,
        priority=encoder_pb2.Priority.Value(f"PRIORITY_{ask.priority.upper()}"),
    )


def _rerank(ask: Ask, question: str, number: int, passages: Sequence[str]) -> Message:
    begin = number * ask.pool_size
    places = [place % len(passages) for place in range(begin, begin + ask.pool_size)]
    return reranker_pb2.RerankRequest(
        query=question,
        candidates=[reranker_pb2.Candidate(id=str(place), text=passages[place]) for place in places],
        priority=reranker_pb2.Priority.Value(f"PRIORITY_{ask.priority.upper()}"),
    )
