"""What the servers of one machine are told by their environment."""

from pathlib import Path

from cli.processes import SystemConfig


def config(synonyms: Path | None = None) -> SystemConfig:
    return SystemConfig(
        encoder_bundle=Path("e"),
        reranker_bundle=Path("r"),
        store=Path("s"),
        synonyms=synonyms,
        gateway_port=1,
        encoder_port=2,
        reranker_port=3,
    )


def test_a_gateway_is_told_of_synonyms_where_there_are_some() -> None:
    """The directory is the gateway's alone, and one that is not given is not set."""
    given = config(Path("/book"))
    assert given.variables("gateway")["TWOSTAGE_GATEWAY_SYNONYMS_PATH"] == "/book"
    assert not any("SYNONYMS" in name for name in given.variables("encoder"))
    assert not any("SYNONYMS" in name for name in config().variables("gateway"))
