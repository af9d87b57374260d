"""Where things are kept: `<home>/bundles/<profile>/{encoder,reranker}`, `<home>/store` and `<home>/journals`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.bundle import Bundle
from serving.errors import Misconfigured

DEFAULT_HOME = Path(".twostage")
Profile = Literal["demo", "full"]
Device = Literal["auto", "cpu", "cuda"]
"""As `serving.session.Device`, which cannot be imported where onnxruntime is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The directory of everything that commands make."""

    path: Path

    @property
    def bundles(self) -> Path:
        """All profiles' bundles."""
        return self.path / "bundles"

    @property
    def store(self) -> Path:
        """The vector store of `twostage up`."""
        return self.path / "store"

    @property
    def journals(self) -> Path:
        """What indexing has stored so far, by run."""
        return self.path / "journals"

    @property
    def demo(self) -> Path:
        """What `twostage demo` makes anew each time."""
        return self.path / "demo"

    def bundle(self, profile: Profile, kind: str) -> Path:
        """One bundle."""
        return self.bundles / profile / kind


def require_bundles(home: Home, profile: Profile, progress: Callable[[str], None]) -> None:
    """See to it that both bundles of a profile are there; those of the demo profile are made where they are not.

    Raises:
        Misconfigured: They are not there and cannot be made here.
    """
    if profile == "demo":
        try:
            from models import demo  # noqa: PLC0415 - bundles that were copied here need no tools to serve
        except ImportError as error:
            _require(home, profile, f"install the demo extra: pip install 'twostage[demo]' ({error.name} is missing)")
            return
        demo.prepare(home.bundles / profile, progress)
    _require(home, profile, f"run `twostage models prepare --profile {profile}`")


def _require(home: Home, profile: Profile, todo: str) -> None:
    for kind in ("encoder", "reranker"):
        try:
            Bundle(home.bundle(profile, kind))
        except Misconfigured as error:
            raise Misconfigured(error.reason, f"{error.message.partition(';')[0]}; {todo}") from error
