"""What the reranker server can be told: `TWOSTAGE_RERANKER_PORT` and so on."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from serving.settings import ModelServerSettings


class RerankerSettings(ModelServerSettings):
    """Settings of the reranker server."""

    prefix: ClassVar[str] = "TWOSTAGE_RERANKER_"
    model_config = SettingsConfigDict(env_prefix=prefix)

    port: int = Field(50_053, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    max_candidates: int = Field(256, ge=1, le=4_096)
    """Candidates per request; 4,096 answers with the longest ids still fit the 4 MiB that clients accept."""
