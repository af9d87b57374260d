"""What the encoder server can be told: `TWOSTAGE_ENCODER_PORT` and so on.

The prefix is not plain `ENCODER_`, because Kubernetes sets `ENCODER_PORT=tcp://...` in every pod beside a service
named `encoder`.
"""

from typing import ClassVar, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from serving.settings import CLIENT_MESSAGE_BYTES, ModelServerSettings

# An embedding as protobuf packs it, for the largest dimension of a supported encoder: floats, then tags and counts.
VECTOR_BYTES = 4 * 1024 + 16
# What an answer holds beside its embeddings: model and timings.
ANSWER_BYTES = 4 * 1024


class EncoderSettings(ModelServerSettings):
    """Settings of the encoder server."""

    prefix: ClassVar[str] = "TWOSTAGE_ENCODER_"
    model_config = SettingsConfigDict(env_prefix=prefix)

    port: int = Field(50_052, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    max_texts: int = Field(256, ge=1)
    """Texts per request."""
    stream_deadline_s: float = Field(300.0, gt=0)
    """Budget of one message of a stream whose caller set no deadline."""
    cache_mib: int = Field(0, ge=0)
    """MiB per worker in which vectors of queries that may be asked again are kept; 0 keeps none."""

    @property
    def cache_bytes(self) -> int:
        """Bytes in which vectors of queries are kept."""
        return self.cache_mib * 2**20

    @model_validator(mode="after")
    def _answer_fits(self) -> Self:
        if self.max_texts * VECTOR_BYTES + ANSWER_BYTES > CLIENT_MESSAGE_BYTES:
            raise ValueError(f"max_texts={self.max_texts}: the answer might exceed the 4 MiB that clients accept")
        return self
