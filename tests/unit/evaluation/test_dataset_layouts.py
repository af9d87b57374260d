"""Data sets out of every layout, small ones written here, and what is wrong with them."""

import gzip
import json
from pathlib import Path

import pytest

from evaluation.datasets.find import find
from evaluation.datasets.model import Document, Question, dataset, sample
from evaluation.records import Population
from serving.errors import Misconfigured

QUESTION = '{"id": "q", "query": "w", "relevant": []}'
HELPCENTRE = Path(__file__).parents[3] / "data" / "helpcentre"


def write(place: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return place


def jsonl(*objects: dict[str, object]) -> str:
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects)


def squad(*paragraphs: tuple[str, list[dict[str, object]]]) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas} for context, qas in paragraphs]}]})


def small(place: Path, **question: object) -> Path:
    """Write the help centre's layout with two documents and one question."""
    documents = jsonl({"id": 0, "text": "zero"}, {"id": "one", "text": "one", "title": "One", "lang": "en"})
    asked = {"id": "q", "query": "what", "relevant": [0], **question}
    return write(place, {"documents.jsonl": documents, "queries.jsonl": jsonl(asked)})


def test_the_help_centre_has_its_population() -> None:
    """200 documents, 80 questions, 20 dev, 60 test, 48 answerable, 12 not; REF-000 is answered by 0, 1 and 2."""
    found = find(str(HELPCENTRE), None)
    assert tuple(found.population.model_dump().values()) == (200, 80, 20, 60, 48, 12)
    assert found.questions[0].judged == {0: 1, 1: 1, 2: 1}
    assert found.unknown_relevant_count == 0


def test_a_help_centre_with_another_population_is_refused(tmp_path: Path) -> None:
    """Losing a question of the tutorial's corpus is not measured around."""
    place = write(
        tmp_path / "helpcentre",
        {
            "documents.jsonl": (HELPCENTRE / "documents.jsonl").read_text(encoding="utf-8"),
            "queries.jsonl": "\n".join((HELPCENTRE / "queries.jsonl").read_text(encoding="utf-8").split("\n")[1:]),
        },
    )
    with pytest.raises(Misconfigured, match="question_count is 79, the help centre has 80"):
        find(str(place), None)


def test_ids_keep_their_kind(tmp_path: Path) -> None:
    """Numbers stay numbers and text stays text; a grade of 0 is no relevance; grades come from an object."""
    place = small(tmp_path, relevant={"0": 2, "one": 0, "ghost": 1})
    found = find(str(place), None)
    assert [document.id for document in found.documents] == [0, "one"]
    assert found.questions[0].judged == {0: 2, "ghost": 1}
    assert found.unknown_relevant_count == 1


def test_the_digest_is_of_everything_that_matters(tmp_path: Path) -> None:
    """Another text, question, judgment or split is another digest; the same files anywhere are the same."""
    digests = {find(str(small(tmp_path / "a")), None).digest, find(str(small(tmp_path / "b")), None).digest}
    assert len(digests) == 1
    for number, change in enumerate(
        [{"query": "who"}, {"relevant": ["one"]}, {"split": "dev"}, {"relevant": {"0": 2}}]
    ):
        digests.add(find(str(small(tmp_path / f"c{number}", **change)), None).digest)
    place = small(tmp_path / "d")
    (place / "documents.jsonl").write_text(jsonl({"id": 0, "text": "zero!"}, {"id": "one", "text": "one"}))
    digests.add(find(str(place), None).digest)
    assert len(digests) == 6


@pytest.mark.parametrize(
    ("documents", "queries", "message"),
    [
        ('{"id": 0, "text": "x"}\n{"id": 0, "text": "y"}', QUESTION, "occurs more"),
        (
            '{"id": 0, "text": "x"}\n{"id": "0", "text": "y"}',
            '{"id": "q", "query": "w", "relevant": []}',
            "occurs more",
        ),
        ('{"id": 0}', QUESTION, "object 1: text: Field required"),
        ("[1]", QUESTION, "line 1: an object is wanted"),
        ('{"id": 0, "text": "x"}', "\n{nonsense", "line 2: not JSON"),
        ('{"id": 0, "text": "  "}', QUESTION, "has 0 documents and 1 questions"),
        ('{"id": 1.5, "text": "x"}', QUESTION, "object 1: id"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, documents: str, queries: str, message: str) -> None:
    """A mistake in the files is an error with the place in it."""
    place = write(tmp_path, {"documents.jsonl": documents, "queries.jsonl": queries})
    with pytest.raises(Misconfigured, match=message):
        find(str(place), None)


def test_line_separators_inside_a_text_end_no_line(tmp_path: Path) -> None:
    """Unicode has line ends that JSON lines do not."""
    place = write(
        tmp_path,
        {
            "documents.jsonl": '{"id": 0, "text": "a\u2028b\u0085c"}\n',
            "queries.jsonl": '{"id": "q", "query": "w", "relevant": [0]}\n',
        },
    )
    assert find(str(place), None).documents[0].text == "a\u2028b\u0085c"


def test_squad_paragraphs_are_documents(tmp_path: Path) -> None:
    """Equal paragraphs are one document, a question's document is its paragraph, an impossible one has none."""
    text = squad(
        ("One  paragraph.", [{"id": "a", "question": "A?"}, {"id": "b", "question": "B?", "is_impossible": True}]),
        ("Another one.", [{"question": "no id"}]),
        ("One paragraph.", [{"id": "a", "question": "same id"}]),
    )
    (tmp_path / "small.json.gz").write_bytes(gzip.compress(text.encode()))
    found = find(str(tmp_path / "small.json.gz"), None)
    assert found.name == "small"
    assert [document.text for document in found.documents] == ["One paragraph.", "Another one."]
    assert [(question.query, dict(question.judged)) for question in found.questions] == [
        ("A?", {0: 1}),
        ("B?", {}),
        ("no id", {1: 1}),
        ("same id", {0: 1}),
    ]


@pytest.mark.parametrize("content", [b"{}", b'{"data": [{}]}', b"\x1f\x8b broken", b"[1]"])
def test_what_is_not_squad_says_so(tmp_path: Path, content: bytes) -> None:
    """Whatever is wrong with the file, its name is in the error."""
    (tmp_path / "bad.json.gz").write_bytes(content if content[:1] == b"\x1f" else gzip.compress(content))
    with pytest.raises(Misconfigured, match=r"bad\.json\.gz"):
        find(str(tmp_path / "bad.json.gz"), None)


def test_beir_folders(tmp_path: Path) -> None:
    """Only judged questions are asked, grades of 0 are no relevance, dev is a split."""
    place = write(
        tmp_path,
        {
            "corpus.jsonl": jsonl({"_id": "d1", "title": "T", "text": "one"}, {"_id": "2", "title": "", "text": "two"}),
            "queries.jsonl": jsonl(*({"_id": name, "text": f"question {name}"} for name in ("7", "8", "9"))),
            "qrels/test.tsv": "query-id\tcorpus-id\tscore\n7\td1\t2\n7\t2\t0\n",
            "qrels/dev.tsv": "query-id\tcorpus-id\tscore\n9\t2\t1\n",
        },
    )
    found = find(str(place), None)
    assert [document.id for document in found.documents] == ["d1", "2"]
    assert [(question.id, question.split, dict(question.judged)) for question in found.questions] == [
        ("7", "test", {"d1": 2}),
        ("9", "dev", {"2": 1}),
    ]
    (place / "qrels/test.tsv").write_text("6\td1\t1\n")
    with pytest.raises(Misconfigured, match="no question 6"):
        find(str(place), None)


def test_trec_folders(tmp_path: Path) -> None:
    """A question without judgments is unanswerable; a malformed line is named."""
    place = write(
        tmp_path,
        {
            "documents.jsonl": jsonl({"id": 5, "text": "five"}),
            "queries.tsv": "1\tone\tmore\n2\ttwo\n",
            "qrels.txt": "1 0 5 1\n1 0 6 -1\n",
        },
    )
    found = find(str(place), None)
    assert [(one.query, dict(one.judged)) for one in found.questions] == [("one\tmore", {"5": 1}), ("two", {})]
    (place / "qrels.txt").write_text("1 0 5\n")
    with pytest.raises(Misconfigured, match="line 1: 3 fields instead of 4"):
        find(str(place), None)


def test_cranfield_counts_questions_by_position(tmp_path: Path) -> None:
    """The judgments' question number is the position, code 1 is the best grade, documents without text are left out."""
    place = write(
        tmp_path,
        {
            "cran.all.1400": ".I 1\n.T\nwings\n.A\nx\n.B\ny\n.W\nwings  in\na slipstream .\n.I 2\n.T\n.A\n.B\n.W\n",
            "cran.qry": ".I 001\n.W\nfirst ?\n.I 004\n.W\nsecond ?\n",
            "cranqrel": "2 1 1\n2 2 4\n2 9 5\n",
        },
    )
    found = find(str(place), None)
    assert [(document.id, document.title, document.text) for document in found.documents] == [
        (1, "wings", "wings in a slipstream .")
    ]
    assert [(one.id, one.query, dict(one.judged)) for one in found.questions] == [
        ("1", "first ?", {}),
        ("2", "second ?", {1: 4, 2: 1}),
    ]
    assert found.unknown_relevant_count == 1


def test_questions_with_answers_of_one_language(tmp_path: Path) -> None:
    """Equal answers are one document, equal questions one question, short answers and other languages are left out."""
    long = "an answer that is long enough"
    rows = ["question\tanswer\tlang", f"A?\t{long}\tit", f'B?\t"{long}"\tit', f"A?\tanother {long}\tit"]
    rows += ["C?\tshort\tit", f"D?\t{long}\tde"]
    public = write(tmp_path, {"covidfaq/faq_200327.tsv": "\n".join(rows) + "\n"})
    found = find("covidfaq.it", public)
    assert [document.text for document in found.documents] == [long, f"another {long}"]
    assert [(one.query, dict(one.judged)) for one in found.questions] == [("A?", {0: 1, 1: 1}), ("B?", {0: 1})]


def test_a_name_that_is_nothing_lists_what_there_is() -> None:
    """A misspelt public set is no empty data set."""
    with pytest.raises(Misconfigured, match=r"no public set; those are xquad\.en"):
        find("xquad.fr", Path("/nowhere"))
    with pytest.raises(Misconfigured, match="TWOSTAGE_PUBLIC_DATA"):
        find("xquad.en", None)


def test_an_empty_folder_says_what_it_could_have_been(tmp_path: Path) -> None:
    """A directory of no known layout lists the layouts."""
    with pytest.raises(Misconfigured, match="has none of the layouts"):
        find(str(tmp_path), None)


def test_a_sample_is_the_same_each_time() -> None:
    """The seed decides; splits are drawn apart, order and digest stay those of the whole."""
    documents = [Document(id=1, text="x")]
    questions = [
        Question(id=f"{split}{number}", query="q", judged={1: 1}, split=split)
        for number in range(20)
        for split in ("test", "dev")
    ]
    whole = dataset("d", documents, questions)
    drawn = sample(whole, 5, 1)
    assert drawn == sample(whole, 5, 1)
    assert drawn.questions != sample(whole, 5, 2).questions
    assert drawn.digest == whole.digest
    assert [question for question in questions if question in drawn.questions] == list(drawn.questions)
    assert drawn.population == Population(
        document_count=1,
        question_count=10,
        dev_count=5,
        test_count=5,
        answerable_test_count=5,
        unanswerable_test_count=0,
    )
    assert sample(whole, None, 1) is whole
    assert len(sample(whole, 100, 1).questions) == 40
