"""Layout of the page in a browser: 1400 pixels wide, on a phone of 390, and on paper."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.benchmarks import mmlu
from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.page import to_html
from tests.support.browser import Browser
from tests.support.workspace import Bench, Side, choice, completion

pytestmark = pytest.mark.slow
Show = Callable[..., Browser]
Document = dict[str, Any]

WIDE, SCROLL_BAR = {"width": 1400, "height": 900}, 15
PHONE = {"width": 390, "height": 844, "phone": True}
SIZES = {"wide": WIDE, "phone": PHONE}
ROUTERS = ("CascadeRouter", "LearnedRouter", "RandomRouter", "BudgetRouter", "OracleRouter")

LEFT, RIGHT = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
INK = 200
"""Pixels darker than this are not paper; the lines of tables and cards are lighter."""

LOOKS = (Path(__file__).parent / "looks.js").read_text(encoding="utf-8")


def crowd(bench: Bench) -> None:
    """Each fixed side and each router with two back ends. Two routers have the same scores; a cascade's differ in their
    last digits; all stand close together.
    """
    draw = np.random.default_rng(0)
    every = range(len(bench.rows))
    scores = {name: draw.random(len(every)) for name in ROUTERS}
    scores["BudgetRouter"] = scores["LearnedRouter"]

    def side(name: str, index: int, backend: str) -> Side:
        right = name == "cloud" or index % 2
        answer = completion(
            f"The answer is {'B' if right else 'C'}.", drafting=backend == "EagleSpecDec", slow=1 + index % 5
        )
        return Side(name, backend, [answer])

    for backend in ("EagleSpecDec", "autoregressive"):
        bench.case("EdgeOnly", [(side("edge", index, backend), None) for index in every], backend=backend)
        bench.case("CloudOnly", [(None, side("cloud", index, backend)) for index in every], backend=backend)
        for place, name in enumerate(ROUTERS):
            given = scores[name] + (1e-7 * draw.random(len(every)) if name == "CascadeRouter" else 0.0)
            sent = [score > 0.5 + 0.01 * place for score in given]
            results = [
                (None, side("cloud", index, backend)) if sent[index] else (side("edge", index, backend), None)
                for index in every
            ]
            bench.case(name, results, scores=[float(score) for score in given], backend=backend)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """All subjects of MMLU, by two models and five routers."""
    root = tmp_path_factory.mktemp("crowd")
    subjects = sorted(subject for members in mmlu.CATEGORIES.values() for subject in members)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        bench = Bench(root, [choice(number, group=subject) for number, subject in enumerate(subjects)])
        crowd(bench)
        return collect(bench.folder)


@pytest.fixture
def show(window: Browser, tmp_path: Path, document: Document) -> Show:
    """``show(fragment, **size)`` opens the page, or that of another document."""

    def run(fragment: str = "", of: Document | None = None, **size: Any) -> Browser:
        path = tmp_path / "page.html"
        path.write_text(to_html(document if of is None else of), encoding="utf-8")
        window.open(path, fragment, **size)
        window.evaluate(f"{LOOKS} return null")
        return window

    return run


def with_more_routers(document: Document) -> Document:
    """The same with 9 more routers, all of which stand where one does."""
    found = copy.deepcopy(document)
    model = next(case for case in found["cases"] if case["router"] == "LearnedRouter")
    for number in range(9):
        found["routing"][0]["cases"].append(len(found["cases"]))
        name = f"Router number {number}"
        found["cases"].append(copy.deepcopy(model) | {"id": f"more{number}", "router": name, "name": name})
    return found


@pytest.mark.parametrize("size", SIZES)
def test_the_table_scrolls_sideways_and_the_page_does_not(show: Show, document: Document, size: str) -> None:
    page = show(f"#columns={'|'.join(column['name'] for column in document['columns'])}", **SIZES[size])
    for opened in ("", "for (const node of document.querySelectorAll('details')) node.open = true;"):
        wide = page.evaluate(f"{opened} return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == SIZES[size]["width"]
    assert page.evaluate("looks.arrows('.cued')")[1] == RIGHT
    before = page.evaluate("looks.board()")
    hidden = sum(left < 0 for _, left in before["heads"])
    assert hidden > 5
    assert before["further"] == f"{hidden} more columns \N{RIGHTWARDS ARROW}"
    page.evaluate("looks.click('#further')")
    assert page.evaluate("looks.board()")["at"] > before["at"]
    page.evaluate("looks.end('.cued .scroll')")
    assert page.evaluate("looks.arrows('.cued')")[1] == ""
    assert page.evaluate("looks.board()")["further"] == ""


@pytest.mark.parametrize("size", SIZES)
def test_no_text_covers_another(show: Show, document: Document, size: str) -> None:
    for fragment in ("", "#x=share&metric=Latency&kinds=all&times=all"):
        for shown in (document, with_more_routers(document)):
            assert show(fragment, shown, **SIZES[size]).evaluate("looks.covered()") == []


def test_charts_of_many_test_cases(show: Show, document: Document) -> None:
    page = show(**WIDE)
    marks = page.evaluate("[...document.querySelectorAll('#speed .mark')].map((n) => n.ariaLabel.split(',')[0])")
    alone = [case for case in document["cases"] if case["router"] in ("EdgeOnly", "CloudOnly")]
    assert sorted(marks) == sorted(case["name"] for case in alone)
    assert "Not drawn: 10 test cases in which two models worked" in page.evaluate("looks.texts('#speed')")[0]
    assert "No curve: EdgeOnly, CloudOnly (one score for all queries)." in page.evaluate("looks.texts('#routing')")[0]
    assert sorted(page.evaluate("looks.texts('.quality tbody td:first-child')")) == sorted(ROUTERS)
    kinds = "looks.texts('#tasks figure text.strong')"
    assert page.evaluate(kinds) == ["STEM", "humanities", "other", "social sciences"]
    page.evaluate("looks.click('#kinds')")
    assert len(page.evaluate(kinds)) == 57


def test_a_tap_shows_a_tooltip(show: Show) -> None:
    page = show(**PHONE)
    for selector, words in (("#head-Accuracy", "score of the answers"), (".quality .term", "advantage that is kept")):
        page.tap(*page.evaluate(f"looks.to('{selector}')"))
        assert words in page.evaluate("looks.tip()")
    page.tap(*page.evaluate("looks.to('#glossary summary')"))
    assert page.evaluate("looks.tip()") == ""
    assert page.evaluate("looks.seen('#glossary dd')") == page.evaluate("looks.seen('.board th')") - 3
    place = page.evaluate("looks.to('#speed .mark')")
    page.tap(*place)
    assert "Speedup:" in page.evaluate("looks.tip()")
    assert "case=" not in page.evaluate("location.hash"), "a second tap goes there"
    page.tap(*place)
    assert "case=" in page.evaluate("location.hash")


def test_the_keyboard_shows_tooltips(show: Show) -> None:
    page = show(**WIDE)
    page.evaluate("document.querySelector('#column-menu summary').focus()")
    wanted = {"head-Accuracy": "score of the answers", "head-Speedup": "autoregressive"}
    for _ in range(30):
        page.press("Tab")
        assert wanted.pop(page.evaluate("document.activeElement.id"), "") in page.evaluate("looks.tip()")
    assert not wanted
    page.evaluate("document.querySelector('.quality .term').focus()")
    assert "random: 0.5" in page.evaluate("looks.tip()")
    page.press("Escape")
    assert page.evaluate("looks.tip()") == ""


@pytest.mark.parametrize("fragment", ["", "#kinds=all&times=all"])
def test_no_page_but_the_last_is_left_half_empty_on_paper(show: Show, fragment: str) -> None:
    pdfium = pytest.importorskip("pypdfium2", reason="needs pypdfium2, of requirements-test.txt, to look at a PDF")
    printed = pdfium.PdfDocument(show(fragment, **WIDE).pdf())
    fills = []
    for sheet in printed:
        rows = np.flatnonzero((sheet.render().to_numpy() < INK).any(axis=(1, 2)))
        fills.append(rows.max() / sheet.get_height())
    assert len(fills) > 2
    assert min(fills[:-1]) > 0.65, fills
    text = "".join(sheet.get_textpage().get_text_bounded() for sheet in printed)
    assert "score of the answers against the references" in text, "definitions are on paper"
    assert "EdgeOnly · EagleSpecDec" in text.partition("what came back")[2], "and whose answer it is"
