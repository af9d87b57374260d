"""The profile full: the hub's models, at the revisions that the catalog pins, exported with torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models import catalog
from models.acquire import Acquired, OnBytes, acquire
from models.catalog import CATALOG, CatalogModel
from models.export import ExportOptions, export
from serving.bundle import Bundle, Kind
from serving.errors import Misconfigured

KINDS: tuple[Kind, ...] = ("encoder", "reranker")
SOURCE = "model hub"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullOptions:
    """Where models come from and where downloads are kept."""

    downloads: Path
    """Directory with one directory per model; what is verified in it is not downloaded again."""
    endpoint: str | None = None
    """The hub's address; None is the public one, or what HF_ENDPOINT names."""
    catalog: Path = CATALOG
    on_bytes: OnBytes = lambda _name, _done, _total: None


def prepare(out: Path, options: FullOptions, progress: Progress) -> list[Path]:
    """Make the bundles `<out>/encoder` and `<out>/reranker`; those that are complete and of the pin are left alone.

    Args:
        out: Directory, made where it is missing.
        options: Where models come from.
        progress: Called with one line for people at each step.

    Returns:
        The bundles' directories.

    Raises:
        Unavailable: The hub cannot be reached.
        Misconfigured: A download is not what is pinned, or a model cannot be exported.
    """
    for kind in KINDS:
        model = catalog.read(options.catalog).model(kind)
        if _up_to_date(out / kind, model):
            progress(f"{kind}: up to date")
            continue
        progress(f"{kind}: downloading {model.id}")
        downloads = options.downloads / model.id.replace("/", "--")
        acquired = acquire(model, downloads, endpoint=options.endpoint, on_bytes=options.on_bytes)
        _pin(options.catalog, kind, acquired, progress)
        export(acquired.path, kind, out / kind, _export_options(model, acquired), progress)
    return [out / kind for kind in KINDS]


def _pin(path: Path, kind: Kind, acquired: Acquired, progress: Progress) -> None:
    try:
        for line in catalog.pin(path, kind, acquired.revision, acquired.files):
            progress(f"pinned in {path.name}: {line}")
    except Misconfigured as error:
        progress(error.message)  # an installed catalog may be read-only; the manifest names the revision all the same


def _export_options(model: CatalogModel, acquired: Acquired) -> ExportOptions:
    return ExportOptions(
        model_id=model.id,
        revision=acquired.revision,
        source=SOURCE,
        max_tokens=model.max_tokens,
        pooling=model.pooling,
        query_prefix=model.query_prefix,
        passage_prefix=model.passage_prefix,
        fp16=True,
        int8=True,
    )


def _up_to_date(path: Path, model: CatalogModel) -> bool:
    """Tell whether the bundle is complete and of the pinned revision, or of any where none is pinned."""
    try:
        manifest = Bundle(path).manifest
    except Misconfigured:
        return False
    return manifest.model_id == model.id and model.revision in (None, manifest.revision)
