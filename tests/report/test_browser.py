"""The page in a real browser, without a window: what it draws, what sorting and choosing do, and what it refuses."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.page import to_html
from tests.report.conftest import NASTY
from tests.support.browser import Browser
from tests.support.workspace import Bench, Side, completion

pytestmark = pytest.mark.slow
Browse = Callable[..., str]


def text(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", fragment))


def part(dom: str, identifier: str) -> str:
    """The inside of a section."""
    return dom.partition(f'<section id="{identifier}"')[2].partition("</section>")[0]


def names(dom: str) -> list[str]:
    return [text(name) for name in re.findall(r'<button class="name">(.*?)</button>', dom)]


def step_times(dom: str) -> list[str]:
    cells = re.findall(r"<td>((?:(?!<td).)*)</td></tr>", part(dom, "drafts"))
    return [" ".join(text(cell).split()) for cell in cells]


@pytest.fixture
def page(bench: Bench, document: dict[str, Any]) -> Path:
    path = bench.root / "page.html"
    path.write_text(to_html(document), encoding="utf-8")
    return path


def test_everything_is_drawn(page: Path, browse: Browse) -> None:
    dom = browse(page)
    assert names(dom) == [
        "EdgeOnly · autoregressive",
        "CloudOnly · autoregressive",
        "CloudOnly · EagleSpecDec",
        "OddRouter · autoregressive",
    ]
    for section in ("speed", "routing", "drafts", "latency"):
        assert part(dom, section).count("<path") >= 2, section
    assert part(dom, "tasks").count("<rect") >= 2
    # A test case is a mark, named for those who cannot see it. Two of one router stand on each other in the second
    # chart, and what two models answered has no place in the first.
    marks = {name: re.findall(r'class="mark"[^>]* aria-label="(\w+)', part(dom, name)) for name in ("speed", "routing")}
    assert sorted(marks["speed"]) == ["CloudOnly", "CloudOnly", "EdgeOnly"]
    assert sorted(marks["routing"]) == ["CloudOnly", "EdgeOnly", "OddRouter"]
    assert part(dom, "speed").count('aria-label="CloudOnly · EagleSpecDec, Speedup: ') == 1
    methods = part(dom, "drafts")
    assert [text(name).strip() for name in re.findall(r'<th scope="row">(.*?)</th>', methods)] == names(dom)[:3]
    # Both have steps of 4 ms, whatever their prompts take.
    assert step_times(dom) == ["2 ms 1\u00d7", "4 ms 1\u00d7", "4 ms 1\u00d7"]
    assert "EagleSpecDec, position 2: accepted in 100 % of 40 drafts, 100 % of those" in methods
    assert part(dom, "latency").count("<figcaption>") == 3
    assert "Question 0?" in part(dom, "queries")
    assert "a processor" in part(dom, "setup")
    assert "NaN" not in dom
    assert "undefined" not in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL).replace("undefined here", "")


def test_the_time_of_a_step_is_relative_to_one_test_case_or_none(bench: Bench, page: Path, browse: Browse) -> None:
    cloud = Side("cloud", "autoregressive", [completion("The answer is B.")])
    bench.case("CloudOnly", [(None, cloud)] * 8, quantization="int8")
    page.write_text(to_html(collect(bench.folder)), encoding="utf-8")
    assert step_times(browse(page)) == ["2 ms 1\u00d7", "4 ms", "4 ms", "4 ms"]


def test_a_query_in_detail(document: dict[str, Any], page: Path, browse: Browse) -> None:
    case = next(case for case in document["cases"] if case["name"] == "CloudOnly · EagleSpecDec")
    dom = browse(page, f"#case={case['id']}&query=7&outcome=wrong")
    detail = text(part(dom, "queries").partition('id="detail"')[2])
    for word in ("odd · q7", "✗ wrong", "Question 7?", "The answer is C.", "cloud, EagleSpecDec", "Reference  B"):
        assert word in detail, word
    strip = re.search(r'<div class="strip".*?</div>', part(dom, "queries"))[0]
    assert "".join(re.findall(r'<i class="(\w)">', strip)) == ("p" + "aat" * 5)[: len("The answer is C.")]
    assert part(dom, "queries").count("<li><button") == 1


def test_foreign_text_is_shown_and_does_nothing(nasty: Bench, browse: Browse) -> None:
    path = nasty.root / "page.html"
    path.write_text(to_html(collect(nasty.folder)), encoding="utf-8")
    dom = browse(path)
    body = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    assert "<img" not in body
    assert "<title>job: report</title>" in dom
    question = re.search(r'<p class="said prompt">(.*?)</p>', body, re.DOTALL)[1]
    assert html.unescape(question) == NASTY.replace("\ud800", "?")


def test_a_script_in_the_page_is_refused(page: Path, browse: Browse) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", "<script>document.title = 'taken over'</script></body>"), encoding="utf-8")
    assert "<title>job: report</title>" in browse(page)


def test_clicks_and_keys(page: Path, window: Browser) -> None:
    window.open(page)
    log = window.evaluate((Path(__file__).parent / "clicks.js").read_text(encoding="utf-8"))
    fastest = "CloudOnly · EagleSpecDec|EdgeOnly · autoregressive|OddRouter · autoregressive|CloudOnly · autoregressive"
    assert log[:2] == [fastest, "|".join(fastest.split("|")[::-1])]
    assert log[2:5] == ["CloudOnly · autoregressive|CloudOnly · EagleSpecDec", True, 9]
    assert log[5] == "CloudOnly · EagleSpecDec"
    assert log[6:10] == [1, False, True, "OddRouter · autoregressive"]
    assert log[10:] == ["odd · q3cloud✓ right", "edge", True, 4]
