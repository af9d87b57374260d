"""Settings of the encoder server: no legal answer may be too large for a client.

Numbers in brackets are those of field failures.
"""

from pathlib import Path

import pytest
from pydantic import ValidationError

from encoder_server.settings import EncoderSettings
from retrieval.encoder.v1 import encoder_pb2 as pb
from serving.settings import CLIENT_MESSAGE_BYTES
from serving.timing import to_duration

LARGEST_DIMENSION = 1_024


def accepted(max_texts: int) -> bool:
    """Tell whether so many texts per request may be set."""
    try:
        EncoderSettings(bundle=Path(), max_texts=max_texts)
    except ValidationError:
        return False
    return True


def answer(texts: int, *, packed: bool) -> pb.EncodeResponse:
    """Make the largest answer to so many texts."""
    vector = [1.1] * LARGEST_DIMENSION
    whole = pb.Embedding(
        values=() if packed else vector,
        packed=bytes(4 * LARGEST_DIMENSION) if packed else b"",
        token_count=8_192,
        truncated=True,
        cached=True,
    )
    hour = to_duration(3_600 * 10**9 + 999_999_999)
    return pb.EncodeResponse(
        embeddings=[whole] * texts,
        timings=pb.Timings(total=hour, tokenize=hour, queue=hour, compute=hour),
        model=pb.ModelReference(id="i" * 1_500, revision="r" * 1_500, digest="d" * 71, precision="fp32", device="cuda"),
    )


@pytest.mark.parametrize("packed", [True, False])
def test_the_largest_answer_that_may_be_set_fits_any_client(packed: bool) -> None:  # noqa: FBT001 - a parameter
    """At the most texts that the settings allow, 1,024 numbers each fit the 4 MiB of gRPC's default (14)."""
    most = max(count for count in range(900, 1_100) if accepted(count))
    assert answer(most, packed=packed).ByteSize() <= CLIENT_MESSAGE_BYTES
    assert not accepted(most + 1)


def test_the_default_is_accepted() -> None:
    """256 texts per request need no setting."""
    assert EncoderSettings(bundle=Path()).max_texts == 256


def test_a_text_larger_than_any_message_is_a_contradiction() -> None:
    """A limit that can never be reached is refused at start."""
    with pytest.raises(ValidationError, match="max_text_bytes"):
        EncoderSettings(bundle=Path(), max_text_bytes=64 * 1024 * 1024)
