"""To which shapes batches are padded, so that a device sees few of them. Pure arithmetic.

A CUDA arena keeps a block for every size that it was ever asked for, and libraries choose their kernels per shape. Of a
few hundred shapes all can be warm, and the memory that they take is reached at start. A CPU gains nothing from that.
"""

from collections.abc import Iterator

FINE_STEP, MIDDLE_STEP, COARSE_STEP = 8, 32, 64
FINE_TOKENS, MIDDLE_TOKENS = 64, 512
ROW_STEP = 8


def padded_tokens(longest: int, device: str, limit: int) -> int:
    """Return to how many tokens a batch's rows are padded.

    Args:
        longest: Tokens of the longest row.
        device: Where the batch is computed.
        limit: Most tokens that the model can; the result is over it only where `longest` is.

    Returns:
        On a CPU `longest`; else the next multiple of 8 up to 64, of 32 up to 512, and of 64 above.
    """
    if device == "cpu":
        return longest
    step = FINE_STEP if longest <= FINE_TOKENS else MIDDLE_STEP if longest <= MIDDLE_TOKENS else COARSE_STEP
    return max(longest, min(_up(longest, step), limit))


def padded_rows(count: int, device: str) -> int:
    """Return to how many rows a batch is filled up: on a CPU none more, else 1, 2, 4 or the next multiple of 8."""
    if device == "cpu":
        return count
    return 1 << (count - 1).bit_length() if count < ROW_STEP else _up(count, ROW_STEP)


def warm_shapes(device: str, *, limit: int, max_rows: int, max_batch_tokens: int) -> Iterator[tuple[int, int]]:
    """Name the shapes, (rows, tokens), to run before serving: each length with most rows and with one, largest first.

    The largest batch goes first, so that memory that does not suffice shows at start and no block is too small for a
    later one.
    """
    lengths = sorted({padded_tokens(longest, device, limit) for longest in range(1, limit + 1)}, reverse=True)
    for tokens in lengths if device != "cpu" else []:
        most = max(1, min(max_rows, max_batch_tokens // tokens))
        yield from {(padded_rows(most, device), tokens): None, (1, tokens): None}


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
