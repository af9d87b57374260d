"""What the gateway can be told: `TWOSTAGE_GATEWAY_PORT` and so on."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from serving.settings import CLIENT_MESSAGE_BYTES, ServerSettings


class GatewaySettings(ServerSettings):
    """Settings of the gateway."""

    prefix: ClassVar[str] = "TWOSTAGE_GATEWAY_"
    model_config = SettingsConfigDict(env_prefix=prefix)

    port: int = Field(50_051, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    encoder_target: str = "dns:///127.0.0.1:50052"
    """gRPC target of the encoders; a name with several addresses is balanced over."""
    reranker_target: str = "dns:///127.0.0.1:50053"
    """gRPC target of the rerankers."""
    store_path: Path = Path(".twostage/store")
    """Directory of the embedded vector store."""
    encode_cap_s: float = Field(5.0, gt=0)
    """Most time for encoding a query."""
    search_cap_s: float = Field(5.0, gt=0)
    """Most time for the vector search."""
    rerank_cap_s: float = Field(10.0, gt=0)
    """Most time for reranking."""
    answer_margin_s: float = Field(0.02, ge=0)
    """Kept back from every stage, so that an answer about a late stage still reaches the caller in time."""
    upsert_deadline_s: float = Field(300.0, gt=0)
    """Budget of one message of documents whose caller set no deadline."""
    max_answer_bytes: int = Field(CLIENT_MESSAGE_BYTES - 256 * 1024, ge=64 * 1024)
    """Most bytes of text and payload in one answer: what every gRPC client accepts, less a margin for the rest."""
