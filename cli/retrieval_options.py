"""Options of a search that say what fills its pool, and the messages that they make."""

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from retrieval.gateway.v1 import gateway_pb2 as pb

Mode = Literal["dense", "lexical", "hybrid"]
Method = Literal["rrf", "weighted", "dbsf"]
Use = Literal["average", "fuse"]
Synonyms = Literal["none", "lexical", "dense", "both"]

MODES: dict[Mode, pb.RetrievalMode.ValueType] = {
    "dense": pb.RETRIEVAL_MODE_DENSE,
    "lexical": pb.RETRIEVAL_MODE_LEXICAL,
    "hybrid": pb.RETRIEVAL_MODE_HYBRID,
}
METHODS: dict[Method, pb.FusionMethod.ValueType] = {
    "rrf": pb.FUSION_METHOD_RRF,
    "weighted": pb.FUSION_METHOD_WEIGHTED,
    "dbsf": pb.FUSION_METHOD_DBSF,
}
USES: dict[Use, pb.HypotheticalUse.ValueType] = {
    "average": pb.HYPOTHETICAL_USE_AVERAGE,
    "fuse": pb.HYPOTHETICAL_USE_FUSE,
}
SYNONYMS: dict[Synonyms, pb.SynonymUse.ValueType] = {
    "none": pb.SYNONYM_USE_NONE,
    "lexical": pb.SYNONYM_USE_LEXICAL,
    "dense": pb.SYNONYM_USE_DENSE,
    "both": pb.SYNONYM_USE_BOTH,
}

GivenMode = Annotated[Mode, typer.Option("--mode", help="By vectors, by words (BM25), or by both.")]
GivenMethod = Annotated[Method, typer.Option("--fusion", help="How several lists become one.")]
RrfK = Annotated[int, typer.Option("--rrf-k", min=1, max=10_000, help="The k of --fusion rrf.")]
DenseWeight = Annotated[
    float, typer.Option("--dense-weight", min=0, max=1, help="Weight of vectors beside words in --mode hybrid.")
]
Alternatives = Annotated[
    list[str] | None, typer.Option("--alternative", metavar="TEXT", help="The question in other words; repeat.")
]
Passages = Annotated[
    list[str] | None,
    typer.Option("--hypothetical-passage", metavar="TEXT", help="What an answer might look like (HyDE); repeat."),
]
GivenUse = Annotated[Use, typer.Option("--hypothetical-use", help="One list of the mean, or a list each.")]
Write = Annotated[bool, typer.Option("--write-hypothetical", help="Have the gateway's writer write such passages.")]
GivenSynonyms = Annotated[Synonyms, typer.Option("--synonyms", help="What the collection's synonyms are applied to.")]
Language = Annotated[str, typer.Option("--language", metavar="NAME", help="Of the question, for synonyms.")]
Depth = Annotated[int | None, typer.Option("--depth", min=1, max=1_000, help="Documents read from each list.")]
MmrLambda = Annotated[
    float | None, typer.Option("--mmr-lambda", min=0, max=1, help="Marginal relevance: 1 relevance, 0 difference.")
]
GroupBy = Annotated[str, typer.Option("--group-by", metavar="KEY", help="Payload key; few documents per value of it.")]
GroupSize = Annotated[
    int | None,
    typer.Option("--group-size", min=1, max=200, help="Documents per value of --group-by.", show_default="1"),
]
ReturnParent = Annotated[
    bool, typer.Option("--return-parent", help="Show the whole document instead of its best part.")
]
RerankParent = Annotated[
    bool, typer.Option("--rerank-parent", help="Rerank the whole document instead of its best part.")
]


def retrieval_message(
    *,
    mode: Mode = "dense",
    method: Method = "weighted",
    rrf_k: int = 60,
    dense_weight: float = 0.5,
    alternatives: Sequence[str] = (),
    passages: Sequence[str] = (),
    use: Use = "average",
    write: bool = False,
    synonyms: Synonyms = "none",
    language: str = "",
    depth: int | None = None,
) -> pb.Retrieval:
    """Make the message of what fills a pool."""
    return pb.Retrieval(
        mode=MODES[mode],
        fusion=pb.Fusion(method=METHODS[method], rrf_k=rrf_k, dense_weight=dense_weight),
        alternatives=alternatives,
        hypothetical_passages=passages,
        hypothetical_use=USES[use],
        write_hypothetical_passages=write,
        synonyms=SYNONYMS[synonyms],
        language=language,
        depth=depth,
    )


def diversity_message(*, mmr_lambda: float | None, group_by: str, group_size: int | None) -> pb.Diversity:
    """Make the message of what keeps a pool from being full of likes."""
    return pb.Diversity(mmr_lambda=mmr_lambda, group_by=group_by, group_size=group_size)
