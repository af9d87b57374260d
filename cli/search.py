"""`twostage search`: one question, the best passages, and where the time went."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from cli import options
from cli import retrieval_options as wanted
from cli.answers import response_document, shortfalls
from cli.calls import gateway_at, run
from cli.console import answers, print_json
from cli.hits_table import hits_table
from cli.time_bar import TimeBar
from retrieval.gateway.v1 import gateway_pb2 as pb

RerankMode = Literal["required", "best-effort", "off"]
MODES: dict[RerankMode, pb.Rerank.ValueType] = {
    "required": pb.RERANK_REQUIRED,
    "best-effort": pb.RERANK_BEST_EFFORT,
    "off": pb.RERANK_OFF,
}


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The question.")],
    collection: options.Collection,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
    pool_size: Annotated[int, typer.Option(min=1, max=200, help="Candidates from the first stage.")] = 20,
    top_k: Annotated[int, typer.Option(min=1, max=200, help="Hits shown.")] = 5,
    rerank: Annotated[
        RerankMode, typer.Option(help="Whether there may be an answer without the reranker.")
    ] = "required",
    stream: Annotated[bool, typer.Option("--stream", help="Show the retrieved order first.")] = False,
    title_field: Annotated[str, typer.Option(metavar="FIELD", help="Payload field shown above the passage.")] = "title",
    mode: wanted.GivenMode = "dense",
    method: wanted.GivenMethod = "weighted",
    rrf_k: wanted.RrfK = 60,
    dense_weight: wanted.DenseWeight = 0.5,
    alternatives: wanted.Alternatives = None,
    passages: wanted.Passages = None,
    use: wanted.GivenUse = "average",
    write: wanted.Write = False,
    synonyms: wanted.GivenSynonyms = "none",
    language: wanted.Language = "",
    depth: wanted.Depth = None,
    mmr_lambda: wanted.MmrLambda = None,
    group_by: wanted.GroupBy = "",
    group_size: wanted.GroupSize = None,
    fold_to_parent: Annotated[
        bool, typer.Option("--fold-to-parent", help="Of a split document show its best part only.")
    ] = False,
    return_parent: wanted.ReturnParent = False,
    rerank_parent: wanted.RerankParent = False,
    timeout: options.Timeout = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Search a collection: rank before and after, score, logit, passage, and the milliseconds of every stage."""
    request = pb.SearchRequest(
        query=query,
        collection=collection,
        pool_size=pool_size,
        top_k=min(top_k, pool_size),
        rerank=MODES[rerank],
        retrieval=wanted.retrieval_message(
            mode=mode,
            method=method,
            rrf_k=rrf_k,
            dense_weight=dense_weight,
            alternatives=alternatives or (),
            passages=passages or (),
            use=use,
            write=write,
            synonyms=synonyms,
            language=language,
            depth=depth,
        ),
        diversity=wanted.diversity_message(mmr_lambda=mmr_lambda, group_by=group_by, group_size=group_size),
        fold_to_parent=fold_to_parent or return_parent or rerank_parent,
        return_parent=return_parent,
        rerank_parent=rerank_parent,
        payload_fields=["*"] if as_json else [title_field] if title_field else [],
    )
    run(_search(gateway, request, timeout, title_field, stream=stream, as_json=as_json), gateway)


async def _search(
    address: str, request: pb.SearchRequest, timeout_s: float, title_field: str, *, stream: bool, as_json: bool
) -> None:
    parts: dict[str, Any] = {}
    async for name, response in _parts(address, request, timeout_s, stream=stream):
        parts[name] = response_document(response)
        if not as_json:
            print_response(answers(), response, title_field=title_field, heading=name if stream else "")
    if as_json:
        print_json(parts if stream else parts["final"])


async def _parts(
    address: str, request: pb.SearchRequest, timeout_s: float, *, stream: bool
) -> AsyncIterator[tuple[str, pb.SearchResponse]]:
    async with gateway_at(address) as gateway:
        if not stream:
            yield "final", await gateway.search.Search(request, timeout=timeout_s)
            return
        async for part in gateway.search.SearchStream(pb.SearchStreamRequest(request=request), timeout=timeout_s):
            name = part.WhichOneof("part") or "final"
            yield name, getattr(part, name)


def print_response(console: Console, response: pb.SearchResponse, *, title_field: str = "", heading: str = "") -> None:
    """Print one answer.

    Args:
        console: Where to.
        response: The answer.
        title_field: Payload key of a heading for each passage, or nothing.
        heading: Of the whole, or nothing.
    """
    if heading:
        console.print(Text(heading, "bold underline"))
    if response.hits:
        console.print(hits_table(response.hits, title_field=title_field))
    else:
        console.print(Text("no document found", "yellow"))
    console.print()
    console.print(TimeBar(response.timings))
    for undone in shortfalls(response.degradation):
        console.print(Text(undone, "bold yellow"))
    console.print(Text(_origin(response.provenance), "dim"), soft_wrap=True)


def _origin(provenance: pb.Provenance) -> str:
    models = [getattr(provenance, name) for name in ("encoder", "reranker") if provenance.HasField(name)]
    used = " + ".join(f"{model.id} {model.precision} on {model.device}" for model in models)
    lists = ", ".join(f"{one.name} {one.candidate_count}" for one in provenance.lists)
    return " | ".join(filter(None, (used, lists)))
