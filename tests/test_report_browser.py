"""The page of `becl report` in a real browser, opened from disk."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_report import everything, make

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

# Put at the beginning of a copy of the page: whatever goes wrong is kept.
WATCH = """<script>
window.seen = { errors: [] };
addEventListener("error", (event) => seen.errors.push(String(event.message || event.target.outerHTML)), true);
addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
for (const level of ["error", "warn"]) console[level] = (...words) => seen.errors.push(words.join(" "));
</script>"""
# Put at its end: what the page is like is written into it, where --dump-dom shows it.
TELL = """<script>
const column = (n) => Array.from(document.querySelectorAll("#aggregates tbody tr"), (row) => row.cells[n].textContent);
const press = (n) => document.querySelectorAll("#aggregates thead button")[n].click();
addEventListener("load", async () => {
  await Promise.all(Array.from(document.images, (image) => image.decode()));
  seen.widths = Array.from(document.images, (image) => image.naturalWidth);
  seen.fetched = performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 5));
  seen.asked = Array.from(document.querySelectorAll("#tasks tbody tr"), (row) => row.cells[0].textContent);
  seen.first = column(1);
  press(1); seen.falling = column(1);
  press(1); seen.rising = column(1);
  press(0); seen.words = column(0);
  seen.marks = Array.from(document.querySelectorAll("#aggregates th[aria-sort]"), (one) => one.cellIndex);
  location.hash = "#runs-0";
  await new Promise((resolve) => setTimeout(resolve, 50));
  seen.unfolded = document.getElementById("runs-0").closest("details").open;
  seen.sideways = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify(seen);
  document.body.append(told);
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("report")
    text = (make(where / "out", everything(where / "runs")) / "index.html").read_text()
    copy = where / "watched.html"
    copy.write_text(text.replace("<head>", "<head>" + WATCH).replace("</body>", TELL + "</body>"))
    return copy


def visit(page: Path, profile: Path, address: str = "", width: int = 1200) -> tuple[dict[str, Any], str]:
    """What the page tells of itself, and what the browser logs."""
    assert BROWSER is not None
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=10000", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri() + address], capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told is not None, done.stderr[-2000:]
    return json.loads(html.unescape(told[1])), done.stderr


def number(text: str) -> float:
    return float(text.split()[0])


def test_the_page_opens_from_disk_without_an_error(page: Path, tmp_path: Path) -> None:
    seen, log = visit(page, tmp_path)
    assert seen["errors"] == []
    assert "CONSOLE" not in log
    assert len(seen["widths"]) >= 7
    assert min(seen["widths"]) > 0
    assert set(seen["fetched"]) <= {"data:"}


def test_tables_sort_by_the_column_that_is_clicked(page: Path, tmp_path: Path) -> None:
    seen, _ = visit(page, tmp_path)
    values = [number(text) for text in seen["first"]]
    assert values != sorted(values, reverse=True)
    assert [number(text) for text in seen["falling"]] == sorted(values, reverse=True)
    assert [number(text) for text in seen["rising"]] == sorted(values)
    assert seen["words"] == sorted(seen["words"], key=str.lower)
    assert seen["marks"] == [0]


def test_an_address_may_ask_for_an_order(page: Path, tmp_path: Path) -> None:
    plain, _ = visit(page, tmp_path)
    sorted_down, _ = visit(page, tmp_path, "#sort=tasks:-0")
    assert plain["asked"] == ["Walker walk", "Walker run"]
    assert visit(page, tmp_path, "#sort=tasks:0")[0]["asked"] == ["Walker run", "Walker walk"]
    assert sorted_down["asked"] == ["Walker walk", "Walker run"]


def test_a_number_leads_to_the_commands_behind_it(page: Path, tmp_path: Path) -> None:
    assert visit(page, tmp_path)[0]["unfolded"] is True


def test_on_a_phone_only_tables_and_figures_move_sideways(page: Path, tmp_path: Path) -> None:
    assert visit(page, tmp_path, width=500)[0]["sideways"] == 0
