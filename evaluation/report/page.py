"""report.html out of the files of an outputs directory."""

import re
from collections.abc import Mapping
from pathlib import Path

import jinja2

from evaluation.figures import AbstentionSignal, Quality
from evaluation.files import write_text
from evaluation.report import depth_chart, latency_chart, numbers, score_charts, slope_chart
from evaluation.report.command import command
from evaluation.report.inputs import Inputs, read_inputs
from evaluation.report.moves import moves
from evaluation.report.ranks import direction, ranks
from evaluation.report.stages import stages

REPORT = "report.html"
TEMPLATES = Path(__file__).with_name("templates")
ROWS = 400
"""Questions in the table of all of them; what changed is first, and the rest is in evaluation.json."""
ROC_SHARES = (0.0, 0.05, 0.1, 0.25, 0.5)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


def write(outputs: Path) -> Path:
    """Write report.html beside the files that it is made of.

    Args:
        outputs: A directory with candidates.json, reranked.json and evaluation.json; what else is there is shown too.

    Returns:
        Where the report is. Equal inputs give equal bytes.

    Raises:
        Misconfigured: One of the three is missing or is no such file.
        NotTogether: They are of different runs.
    """
    path = outputs / REPORT
    write_text(render(read_inputs(outputs)), path)
    return path


def render(inputs: Inputs) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ms=numbers.ms,
        figure=numbers.value,
        signed=numbers.signed,
        p=numbers.p,
        percent=numbers.percent,
        rank=numbers.rank,
        language=_language,
    )
    environment.globals.update(span=numbers.span, signed_span=numbers.signed_span, count=numbers.count)
    return environment.get_template("page.html.jinja").render(_view(inputs))


def _view(inputs: Inputs) -> Mapping[str, object]:
    """Return what the template shows: the files themselves, and what is derived for people."""
    evaluation = inputs.evaluation
    quality, latency = evaluation.quality, evaluation.latency
    placed = ranks(quality.questions)
    return {
        "inputs": inputs,
        "run": evaluation.provenance,
        "quality": quality,
        "latency": latency,
        "abstention": evaluation.abstention,
        "headline": [change for change in quality.changes if change.measure in quality.headline],
        "verdict": quality.changes[_main(quality)],
        "command": command(evaluation.provenance),
        "stages": stages(latency),
        "ranks": placed,
        "slopes": slope_chart.slope_chart(placed) if quality.questions else None,
        "rows": sorted(quality.questions, key=lambda one: one.first_before == one.first_after)[:ROWS],
        "direction": direction,
        "waits": latency_chart.latency_chart(latency),
        "moves": moves(inputs.candidates, inputs.reranked, quality.questions, quality.changes[_main(quality)].measure),
        **_studied(inputs),
        **_signals(evaluation.abstention.signals if evaluation.abstention else ()),
    }


def _main(quality: Quality) -> int:
    """Return the place of the measure that the page is about: the last of the headline, nDCG."""
    measures = [change.measure for change in quality.changes]
    return measures.index(quality.headline[-1])


def _studied(inputs: Inputs) -> Mapping[str, object]:
    if inputs.studies is None or not inputs.studies.pool_depth:
        return {"depth": None, "depth_measure": ""}
    points = inputs.studies.pool_depth
    return {"depth": depth_chart.depth_chart(points), "depth_measure": depth_chart.shown_measure(points)}


def _signals(signals: tuple[AbstentionSignal, ...]) -> Mapping[str, object]:
    return {
        "histograms": [
            (signal, score_charts.histogram_chart(signal), score_charts.bins(signal.histogram)) for signal in signals
        ],
        "roc": score_charts.roc_chart(signals) if signals else None,
        "roc_table": [(share, [score_charts.answered_at(signal, share) for signal in signals]) for share in ROC_SHARES],
        "signal_names": score_charts.NAMES,
    }


def _language(code: str) -> str:
    """Return a language for the page's attribute, or nothing where a data set has something else there."""
    return code if _LANGUAGE.fullmatch(code) else ""
