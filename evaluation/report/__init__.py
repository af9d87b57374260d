"""report.html: one self-contained page about one outputs directory, made for people.

The page has no script and asks nothing of the network: charts are drawn as SVG when it is written, colours are CSS
variables so that one drawing serves light and dark, and every chart has a table beside it that says the same.
"""

from evaluation.report.page import write

__all__ = ["write"]
