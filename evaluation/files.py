"""Reading and writing the files of an outputs directory, and the refusal of files that do not belong together."""

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

from pydantic import ValidationError

from evaluation.records import Record
from serving.errors import Misconfigured

T = TypeVar("T", bound=Record)

DIGEST_SHOWN = 19
"""Characters of a digest in a message: "sha256:" and twelve digits."""


class NotTogether(Misconfigured):
    """Two inputs of a phase come from different data, pools or models."""

    def __init__(self, what: str, found: str, wanted: str, todo: str) -> None:
        super().__init__(
            "INPUTS_DO_NOT_BELONG_TOGETHER",
            f"{what}: {found[:DIGEST_SHOWN]} against {wanted[:DIGEST_SHOWN]}; {todo}",
        )


def read(shape: type[T], path: Path, phase: str) -> T:
    """Read one file.

    Args:
        shape: What it holds.
        path: Where it is.
        phase: The phase that writes it, for the message.

    Raises:
        Misconfigured: It is not there, or is no such file.
    """
    try:
        return shape.model_validate_json(path.read_bytes())
    except OSError as error:
        raise Misconfigured(
            "OUTPUT_MISSING", f"{path} cannot be read; run `twostage evaluate {phase}` first"
        ) from error
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(map(str, detail["loc"])) or "file"
        raise Misconfigured(
            "OUTPUT_MALFORMED", f"{path}: {where}: {detail['msg']}; run `twostage evaluate {phase}` again"[:250]
        ) from error


def write(record: Record, path: Path) -> None:
    """Write one file so that whoever opens it sees the old one or the whole new one; keys are sorted."""
    text = json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False)
    write_text(text + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write a text file atomically; its directory is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(
        "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as part:
        try:
            part.write(text)
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).chmod(0o644)
            Path(part.name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(part.name).unlink()
            raise


def require_same(what: str, found: str, wanted: str, todo: str) -> None:
    """Refuse two inputs of which one was made from something else.

    Args:
        what: What differs, and where, for people.
        found: The digest or name that one says.
        wanted: The one that the other says.
        todo: What to do about it.

    Raises:
        NotTogether: They differ.
    """
    if found != wanted:
        raise NotTogether(what, found, wanted, todo)
