"""The page as a whole."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_factories import HOSTILE, Ask, asks, negatives, run, write_run

from evaluation import records, report
from evaluation.files import write
from evaluation.phases.evaluate import evaluated
from serving.errors import Misconfigured

LIMIT = 1_500_000
"""Bytes of a report that still goes with a mail."""
VOID = {"meta", "link", "br", "img", "line", "rect", "path", "circle"}


class Page(HTMLParser):
    """Reads a page strictly: every element has to be closed where it was opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.events: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID or tag in {"path", "line", "rect"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.ids.update(value for name, value in attrs if name == "id")
        self.links += [value for name, value in attrs if name in {"href", "src", "xlink:href"}]
        self.events += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """Everything that is read, spaces made one."""
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """The usual run."""
    return write_run(tmp_path_factory.mktemp("outputs"))


@pytest.fixture(scope="module")
def html(outputs) -> str:
    """Its report."""
    return report.write(outputs).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html) -> Page:
    """Its report, read."""
    return Page(html)


def test_the_report_lies_beside_its_files(outputs, html):
    """It is called report.html, is in the outputs directory, and no part of it is left over."""
    assert html == (outputs / "report.html").read_text(encoding="utf-8")
    assert not list(outputs.glob(".report*"))


def test_equal_inputs_give_equal_bytes(outputs, html):
    """Nothing of the moment is in the page."""
    assert report.write(outputs).read_text(encoding="utf-8") == html


def test_the_page_is_self_contained_and_small(html, page):
    """It has no script, no event handler, and no link but to its own parts; it forbids itself everything else."""
    assert page.tags["script"] == 0
    assert page.events == []
    assert {link for link in page.links if not link.startswith("#")} == {"data:,"}
    assert "default-src 'none'" in html
    assert "@import" not in html
    assert len(html.encode()) < LIMIT


def test_the_page_is_well_formed(page):
    """Every element is closed, no id is there twice, and every link inside the page has a target."""
    assert page.open == []
    assert [name for name, times in page.ids.items() if times > 1] == []
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_every_chart_has_a_table(page):
    """There are six charts and at least as many tables that say the same."""
    assert page.tags["figure"] == 6
    assert page.tags["table"] >= 6
    assert page.tags["th"] > 30


@pytest.mark.parametrize(
    "words",
    [
        "On 48 answerable questions, reranking the same 20 candidates moves nDCG@5 from",
        "12 questions without an answer left out",
        "within noise; one question can move it by up to 0.021",
        "encode the question becomes a vector",
        "the tutorial: RTX 3090",
        "48.92",
        "A new rule to evaluate, not a validated capability",
        "REF-006 · first answer: 17 → to 1 · nDCG@5 +1.000",
        "✓ answers the question A recovery code opens the door once",
        "Better: 5 questions",
        "Worse: 1 question",
        "✓ passed empty pool",
        "17 candidates left, none of the removed returned, recall 0.000",
        "intfloat/multilingual-e5-small fp32 on cpu",
        "sha256:" + "b6" * 32,
        "sha256:" + "c0" * 32,
        "Imaginary Processor 9000",
        "numpy 2.4.6, python 3.11.7, twostage 0.1.0",
        "twostage evaluate all",
    ],
)
def test_the_page_says(page, words):
    """Verdict, figures, texts, checks and provenance are there in words."""
    assert words in page.text


def test_texts_of_users_are_inert(tmp_path):
    """Markup in questions, documents, ids and languages is text: no element and no handler comes of it."""
    hostile = Ask(id=HOSTILE, before=4, after=1, query=HOSTILE, answer=HOSTILE, other=HOSTILE, lang=f'x" {HOSTILE}')
    html = report.write(write_run(tmp_path, [hostile, *asks()[1:]])).read_text(encoding="utf-8")
    page = Page(html)
    assert page.tags["script"] == page.tags["img"] == 0
    assert page.events == []
    assert page.text.count("window.hacked") > 6
    assert "{{ 7 * 7 }}" in page.text
    assert "49 }}" not in page.text


def test_what_was_not_run_is_not_shown(tmp_path):
    """Without studies, checks and unanswerable questions the page has no such sections and no empty ones."""
    questions = [Ask(id="a", before=2), Ask(id="b")]
    page = Page(report.write(write_run(tmp_path, questions, beside=False)).read_text(encoding="utf-8"))
    assert {"depth", "abstention", "checks"} & set(page.ids) == set()
    assert {"pipeline", "ranks", "measures", "latency", "changes", "provenance"} <= set(page.ids)


def test_a_run_without_answerable_questions_is_shown(tmp_path):
    """A split with nothing to find gives a page that says so."""
    questions = [Ask(id="a", answerable=False), Ask(id="b", answerable=False)]
    page = Page(report.write(write_run(tmp_path, questions, beside=False)).read_text(encoding="utf-8"))
    assert "No question of this split has an answer." in page.text
    assert "No question got better." in page.text


def test_a_run_that_lost_every_reranking_is_shown(tmp_path):
    """Where the reranker answered nothing, the page shows the loss and why, and no time."""
    candidates, reranked = run([Ask(id="a"), Ask(id="b", before=3)])
    lost = reranked.model_copy(update={"questions": (), "failed": dict.fromkeys("ab", "UNAVAILABLE: no reranker")})
    write(candidates, tmp_path / records.CANDIDATES)
    write(lost, tmp_path / records.RERANKED)
    write(evaluated(candidates, lost), tmp_path / records.EVALUATION)
    page = Page(_written(tmp_path))
    assert "Worse: 2 questions" in page.text
    assert "UNAVAILABLE: no reranker" in page.text


def test_a_failed_check_shows(tmp_path):
    """A check that failed says so in a word, with what was expected."""
    write(negatives(passed=False), write_run(tmp_path) / records.NEGATIVES)
    assert "✗ failed truncated pair truncated: true; expected truncated: true" in Page(_written(tmp_path)).text


def test_files_of_another_run_are_said(tmp_path):
    """A file that was left out is named at the top of the page."""
    (write_run(tmp_path) / records.STUDIES).write_text("[]", encoding="utf-8")
    assert "studies.json cannot be read and is left out" in Page(_written(tmp_path)).text


def test_a_report_that_fails_leaves_the_old_one(tmp_path):
    """Where the files do not make a report any more, the one that is there stays as it is."""
    before = _written(write_run(tmp_path))
    (tmp_path / records.RERANKED).write_text("{}", encoding="utf-8")
    with pytest.raises(Misconfigured):
        report.write(tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before


def test_many_questions_stay_within_the_size(tmp_path):
    """A data set with more questions than the table takes and long texts gives a page that goes with a mail."""
    long = "A long passage with many words in it. " * 40
    questions = [
        Ask(id=f"Q{number:05}", before=1 + number % 20, after=1 + number % 7, other=long) for number in range(600)
    ]
    html = _written(write_run(tmp_path, questions, beside=False))
    assert len(html.encode()) < LIMIT
    assert "400 of 600: all are in evaluation.json" in Page(html).text


def _written(outputs: Path) -> str:
    return report.write(outputs).read_text(encoding="utf-8")
