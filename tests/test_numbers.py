"""Pages say what the files under results/ say, and nobody types a rate."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from benchmarks.numbers import pages, report, speed
from benchmarks.numbers.files import RESULTS, ROOT, read, read_json

PAGES = pages.pages()
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER = {
    "docs/own-environment.md": {"1,000 steps/s"},  # What an environment of a millisecond allows.
    "docs/troubleshooting.md": {"tens of steps/s"},
}
"""Rates that nobody measured, and that pages may name."""
TYPED = {
    "docs/maze.md": {"1.80 ± 0.11", "2.25 ± 0.02"},  # Seeds whose files were not kept, as the page says.
    "docs/own-method.md": {"1180 ± 104"},
    "docs/pixels.md": {"0.5 ± 0.02"},  # What the released code makes of pixels.
}
"""Means that no file has."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_pages_say_what_the_files_under_results_say(capsys):
    assert PAGES, "no page has numbers made from results"
    assert pages.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_that_disagrees_is_found_and_mended(page):
    text = page.read_text()
    wrong = pages.BLOCK.sub(r"\g<1>wrong\n\g<3>", pages.NUMBER.sub(r"\g<1>wrong\g<3>", text))
    assert wrong != text
    assert pages.renewed(wrong) == text


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_no_rate_is_typed_by_hand(page):
    rates = re.compile(r"(?:\w+ of|\d[\d,.]*) (?:steps/s|µs|times the released)")
    typed = rates.findall(pages.without_numbers(page.read_text()))
    assert set(typed) <= OTHER.get(name_of(page), set())


@pytest.mark.parametrize("page", [path for path in TEXTS if path != ROOT / report.PAGE], ids=name_of)
def test_no_mean_is_typed_by_hand(page):
    typed = re.findall(r"\d[\d,.]* ± \d[\d.]*\d", pages.without_numbers(page.read_text()))
    assert set(typed) <= TYPED.get(name_of(page), set())


def test_a_stale_report_is_found(monkeypatch, capsys):
    monkeypatch.setattr(report, "text", lambda: "another page")
    assert pages.main(["--check"]) == 1
    assert "docs/results.md: does not agree" in capsys.readouterr().out


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_place_for_a_number_is_found(page):
    """A comment with a slip in it would leave what stands there as it is."""
    text = page.read_text()
    assert text.count("<!-- numbers:") == len(pages.BLOCK.findall(text))
    assert text.count("<!-- number:") == len(pages.NUMBER.findall(text))


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_no_comment_for_a_number_begins_a_line(page):
    """There it would end the paragraph, as Markdown has it."""
    assert re.findall(r"^ *<!-- number: .*$", page.read_text(), re.MULTILINE) == []


@pytest.mark.parametrize("words", ["rate becl-released 3", "rate nobody 1", "rate", "noted nothing", "run-time none"])
def test_what_no_file_has_is_one_line(words):
    with pytest.raises(SystemExit, match=f"^numbers: {words}: "):
        pages.written(words, pages.NUMBERS)


def test_an_unknown_name_is_one_line():
    with pytest.raises(SystemExit, match=r"^numbers: unknown name 'speeed'; known: .*rate.*$"):
        pages.written("speeed becl 8", pages.NUMBERS)


def test_rates_that_sweeps_reckon_with_are_those_under_results():
    """`becl` is the released formula on robots."""
    for row in json.loads((resources.files("becl") / "data" / "rates.json").read_text()):
        source = row["source"].partition(",")[0]
        if source.endswith(".md"):
            method = "becl-released" if row["method"] == "becl" else row["method"]
            expected = speed.rates(row["env"])[method, row["together"]].steps
        else:
            expected = round(read_json(ROOT / source / "result.json")["steps_per_second"])
        assert row["steps_per_second"] == expected, row


def test_every_file_of_measured_speed_says_where_it_comes_from():
    folder = RESULTS / "speed"
    told = (folder / "README.md").read_text()
    names = {path.name for path in folder.iterdir()} - {"README.md"}
    assert {name for name in names if f"`{name}`" not in told} == set()


def test_a_noted_number_has_its_circumstances():
    for row in read(RESULTS / "speed" / "noted.csv"):
        assert all(row.values()), row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]), row
