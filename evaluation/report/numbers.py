"""How numbers are written: the one place that decides about digits, signs and units."""

from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
EN_DASH = "\N{EN DASH}"
NOT_FOUND = "not in the pool"


def ms(value: float) -> str:
    """Write milliseconds with three digits that mean something: "5.70", "48.9", "1,204"."""
    size = abs(value)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0  # noqa: PLR2004 - where a digit is gained by rounding
    return f"{value:,.{decimals}f}".replace("-", MINUS)


def value(figure: float) -> str:
    """Write a measure: "0.866"."""
    return f"{figure:.3f}".replace("-", MINUS)


def signed(figure: float) -> str:
    """Write a difference with its sign: "+0.134"; one that rounds to nothing has none."""
    written = f"{figure:+.3f}".replace("-", MINUS)
    return "0.000" if written.strip(f"+{MINUS}") == "0.000" else written


def span(low: float, high: float) -> str:
    """Write an interval of values, with a dash where there is no minus to mistake it for."""
    return f"{value(low)}{EN_DASH if low >= 0 else ' to '}{value(high)}"


def signed_span(low: float, high: float) -> str:
    """Write an interval of differences."""
    return f"{signed(low)} to {signed(high)}"


def p(figure: float) -> str:
    """Write a p-value; a resampling of some thousands cannot tell small ones apart."""
    return "< 0.001" if figure < 0.001 else f"{figure:.3f}"  # noqa: PLR2004 - the smallest that three decimals show


def percent(share: float) -> str:
    """Write a share: "84 %"; a share that is there is never written as 0."""
    written = f"{share:.0%}".replace("%", " %")
    return "< 1 %" if share > 0 and written == "0 %" else written


def rank(place: int | None) -> str:
    """Write a rank, or that there is none."""
    return NOT_FOUND if place is None else str(place)


def count(number: int, one: str, many: str = "") -> str:
    """Write a number of things: "1 question", "48 questions"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str], limit: int = 6) -> str:
    """Write the first few names and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def clipped(text: str, limit: int) -> str:
    """Write the beginning of a text, cut between words."""
    whole = " ".join(text.split())
    if len(whole) <= limit:
        return whole
    cut = whole[:limit]
    return cut[: cut.rfind(" ") if " " in cut[limit // 2 :] else limit].rstrip(" ,;:.") + "\N{HORIZONTAL ELLIPSIS}"
