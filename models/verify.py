"""Whether a bundle is what its manifest says, tried with the very code that serves it; and which bundles there are."""

from dataclasses import dataclass
from pathlib import Path

from serving.bundle import MANIFEST_NAME, Bundle, Manifest, Precision
from serving.errors import Misconfigured
from serving.model import Model
from serving.selftest import self_test
from serving.session_options import Device, SessionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A form of a bundle that passed, and by how much."""

    path: Path
    manifest: Manifest
    precision: Precision
    """Which form was tried."""
    digest: str
    """"sha256:" and the manifest's SHA-256, as servers report it."""
    device: str
    row_count: int
    """Golden outputs that were computed again."""
    max_difference: float
    """Largest absolute difference from them."""
    tolerance: float
    """Largest difference that is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A directory that is meant to be a bundle."""

    path: Path
    manifest: Manifest | None
    problem: str = ""
    """What is wrong, for people, where the manifest is None."""


def verify(
    path: Path, *, precision: Precision | None = None, device: Device = "cpu", threads: int | None = None
) -> Verified:
    """Check digests, tokenizer, graph, shapes and golden outputs.

    Args:
        path: The bundle's directory.
        precision: Which form to try; None is `model.onnx`.
        device: Where to compute.
        threads: Threads to compute with; None is all that are usable.

    Raises:
        Misconfigured: Something is not as it has to be.
    """
    bundle = Bundle(path)
    model = Model(bundle, bundle.manifest.kind, SessionOptions(device=device, threads=threads, precision=precision))
    report = self_test(model)
    return Verified(
        path=path,
        manifest=bundle.manifest,
        precision=model.precision,
        digest=bundle.digest,
        device=model.session.device,
        row_count=report.row_count,
        max_difference=report.max_difference,
        tolerance=report.tolerance,
    )


def list_bundles(root: Path) -> list[Listed]:
    """List the bundles below a directory, by path; digests are not computed.

    Args:
        root: For example the directory that holds one directory per profile.
    """
    return [_listed(path.parent) for path in sorted(root.glob(f"**/{MANIFEST_NAME}")) if not _hidden(path, root)]


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _listed(path: Path) -> Listed:
    try:
        return Listed(path=path, manifest=Bundle(path).manifest)
    except Misconfigured as error:
        return Listed(path=path, manifest=None, problem=error.message)
