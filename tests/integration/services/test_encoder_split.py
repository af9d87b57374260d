"""The encoder splits texts into passages that it takes whole."""

from typing import Any

import grpc
import pytest
from factories import encoder_settings
from model_rigs import PASSAGE, QUERY, EncoderRig, open_encoder
from rigs import failure

from encoder_server.service import _split_text
from encoder_server.splitting import Piece
from retrieval.encoder.v1 import encoder_pb2 as pb
from serving.bundle import Bundle

TEXTS = [
    "What is tea? " * 3,
    "A river, a mountain and 7 papers. What is panda? " * 40,
    "\n\nmountain " * 300,
    "熊猫喝茶。" * 200,
    "größe" * 300,
]

EIGHTHS: list[Any] = [{}, {"overlap_tokens": 4}]


class Counted(str):
    """A text that counts the characters that are read of it."""

    __slots__ = ("read",)
    read: int

    def __getitem__(self, key: Any) -> str:
        part = super().__getitem__(key)
        self.read += len(part)
        return part


@pytest.fixture
async def encoder(tiny_encoder: Bundle) -> Any:
    """An encoder server over the tiny model of 64 tokens."""
    async with open_encoder(encoder_settings(tiny_encoder)) as rig:
        yield rig


def cut(text: str, split: pb.SplitText) -> list[str]:
    return [text.encode()[passage.begin : passage.end].decode() for passage in split.passages]


async def test_every_passage_is_encoded_whole_with_the_tokens_it_was_said_to_have(encoder: EncoderRig) -> None:
    """What comes out of Split goes into Encode without a cut, token for token, and holds all of the text."""
    response = await encoder.stub.Split(pb.SplitRequest(texts=TEXTS, input_type=PASSAGE, overlap_tokens=0))
    assert response.model.digest == encoder.server.engine.model.bundle.digest
    assert len(response.texts[0].passages) == 1
    for text, split in zip(TEXTS, response.texts, strict=True):
        passages = cut(text, split)
        encoded = await encoder.encode(*passages)
        told = [passage.token_count for passage in split.passages]
        assert [embedding.token_count for embedding in encoded.embeddings] == told
        assert max(told) <= 64
        assert "".join("".join(passages).split()) == "".join(text.split())


async def test_the_overlap_is_an_eighth_of_the_limit_unless_said_otherwise(encoder: EncoderRig) -> None:
    """Neighbours share sentences up to the overlap: none, some by default, more where more is asked for."""
    text = "What is tea? " * 60
    bytes_of = {}
    for overlap in (None, 0, 32):
        request = pb.SplitRequest(texts=[text], input_type=PASSAGE, overlap_tokens=overlap)
        (split,) = (await encoder.stub.Split(request)).texts
        bytes_of[overlap] = sum(len(passage) for passage in cut(text, split))
    assert bytes_of[0] <= len(text) < bytes_of[None] < bytes_of[32]


@pytest.mark.parametrize("per_sentence", [False, True])
async def test_a_smaller_limit_is_kept_token_for_token(encoder: EncoderRig, per_sentence: Any) -> None:
    """Passages of at most 24 of the model's 64 tokens, prefix and special tokens included, hold all of the text."""
    request = pb.SplitRequest(
        texts=TEXTS, input_type=PASSAGE, max_tokens=24, overlap_tokens=0, per_sentence=per_sentence
    )
    response = await encoder.stub.Split(request)
    for text, split in zip(TEXTS, response.texts, strict=True):
        passages = cut(text, split)
        told = [passage.token_count for passage in split.passages]
        assert max(told) <= 24
        assert "".join("".join(passages).split()) == "".join(text.split())
        for begin in range(0, len(passages), 256):
            encoded = await encoder.encode(*passages[begin : begin + 256])
            assert [one.token_count for one in encoded.embeddings] == told[begin : begin + 256]


async def test_the_overlap_is_measured_by_the_limit_that_was_set(encoder: EncoderRig) -> None:
    """Half of the model's own limit is too much for a smaller one, and its eighth is the default."""
    text = "What is tea? " * 60
    too_much = pb.SplitRequest(texts=[text], input_type=PASSAGE, max_tokens=32, overlap_tokens=17)
    assert (await failure(encoder.stub.Split(too_much))).info["field"] == "overlap_tokens"
    told = [pb.SplitRequest(texts=[text], input_type=PASSAGE, max_tokens=32, **more) for more in EIGHTHS]
    unset, eighth = [(await encoder.stub.Split(request)).texts for request in told]
    assert unset == eighth


async def test_every_sentence_is_a_passage_also_of_a_short_text(encoder: EncoderRig) -> None:
    """A text within the limit is split into its sentences, which share nothing whatever overlap was asked for."""
    text = "What is tea? A river. What is panda?"
    request = pb.SplitRequest(texts=[text], input_type=PASSAGE, per_sentence=True, overlap_tokens=32)
    (split,) = (await encoder.stub.Split(request)).texts
    assert cut(text, split) == ["What is tea?", "A river.", "What is panda?"]


@pytest.mark.parametrize(("step", "size"), [(7, 7), (7, 4), (7, 13)])
def test_passages_are_measured_in_bytes_without_reading_the_text_again(step: int, size: int) -> None:
    """Side by side, with gaps and with overlap, bounds are right, and a text of many passages is read but thrice."""
    text = Counted("aé字𝄞" * 2_000)
    text.read = 0
    pieces = [
        Piece(begin=begin, end=min(begin + size, len(text)), token_count=begin) for begin in range(0, len(text), step)
    ]
    passages = _split_text(text, pieces).passages
    assert text.read <= 3 * len(text)
    plain = str(text)
    assert [(one.begin, one.end, one.token_count) for one in passages] == [
        (len(plain[: one.begin].encode()), len(plain[: one.end].encode()), one.token_count) for one in pieces
    ]


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"texts": []}, "TEXTS_EMPTY", "texts"),
        ({"texts": ["tea", " \u200b"]}, "TEXT_BLANK", "texts[1]"),
        ({"input_type": 0}, "INPUT_TYPE_REQUIRED", "input_type"),
        ({"overlap_tokens": -1}, "OUT_OF_RANGE", "overlap_tokens"),
        ({"overlap_tokens": 33}, "OUT_OF_RANGE", "overlap_tokens"),
        ({"max_tokens": 15}, "OUT_OF_RANGE", "max_tokens"),
        ({"max_tokens": 65}, "OUT_OF_RANGE", "max_tokens"),
        ({"max_tokens": 0}, "OUT_OF_RANGE", "max_tokens"),
        ({"texts": ["x" * 65_537]}, "TEXT_TOO_LARGE", "texts[0]"),
        ({"texts": ["x"] * 257}, "TOO_MANY_TEXTS", "texts"),
    ],
)
async def test_what_is_wrong_is_named(encoder: EncoderRig, fields: Any, reason: str, field: str) -> None:
    """A request that is wrong is the caller's fault, with the field."""
    call = encoder.stub.Split(pb.SplitRequest(**{"texts": ["tea"], "input_type": QUERY, **fields}))
    failed = await failure(call)
    assert (failed.code, failed.reason, failed.info["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)
