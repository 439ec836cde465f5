"""The gallery in a real browser: the live page, and the exported file from disk without a network."""

import importlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import viser
from gallery_runs import make_run

from becl.commands.cli import main
from becl.views.gallery import numbers as gallery_numbers
from becl.views.gallery import server as gallery_server
from becl.views.gallery.gate import Gate, open_gate
from becl.views.gallery.page import Page
from becl.views.poses import look_at

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--use-gl=angle", "--use-angle=swiftshader",
         "--enable-unsafe-swiftshader", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip
PATIENCE = 60_000.0  # Milliseconds: without a GPU pictures take their time.

pytest.importorskip("playwright", reason="playwright is missing: make test-browser installs it")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "walker", "walker", skills=16)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # By name: type checkers run where it is not installed.
    with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
        if BROWSER is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium on this machine: make test-browser installs one")
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


def visit(browser: Any, address: str, offline: bool = False) -> tuple[Any, list[str]]:
    """A tab, and whatever goes wrong in it from now on."""
    context = browser.new_context(viewport={"width": 1000, "height": 700}, offline=offline)
    tab, wrong = context.new_page(), []
    tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: wrong.append(request.url) if outside(request.url) else None)
    tab.goto(address)
    tab.wait_for_selector("canvas", timeout=PATIENCE)
    return tab, wrong


def outside(address: str) -> bool:
    return not address.startswith(("file:", "data:", "blob:", "http://127.0.0.1", "ws://127.0.0.1"))


def colours(tab: Any) -> int:
    """How many different ones a picture of the page has."""
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(tab.screenshot(timeout=PATIENCE)))
    return len(picture.convert("RGB").getcolors(10**6) or [])


@pytest.fixture(scope="module")
def gate() -> Gate:
    return open_gate()


@pytest.fixture(scope="module")
def page(run: Path, gate: Gate) -> Iterator[Page]:
    with gallery_server.server_at(gate, "becl") as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery_numbers, "EPISODES", 1)
        page = Page(server, look_at(run), frames=20, steps=40)
        playing = threading.Thread(target=page.play_forever, daemon=True)
        playing.start()
        page._measuring.join()
        yield page
        page.stop()
        playing.join()


def wait_for(tab: Any, condition: Any) -> None:
    """Until the server has seen it."""
    for _ in range(200):
        if condition():
            return
        tab.wait_for_timeout(100)
    raise AssertionError("the server was not told")


def test_the_live_page_shows_all_skills_and_its_slider_picks_one(page: Page, gate: Gate, browser: Any) -> None:
    assert page.motion.poses.shape[0] == 16
    tab, wrong = visit(browser, gate.address)
    wait_for(tab, lambda: page.server.get_clients())
    shown = [mesh.batched_positions for mesh in page._stage._meshes]  # type: ignore[attr-defined]
    assert all(len(places) == 16 for places in shown)
    assert len(np.unique(np.round(shown[0], 3), axis=0)) == 16
    tab.wait_for_selector("text=bins covered", timeout=PATIENCE)
    assert page.skill is None

    slider = tab.get_by_role("slider").first
    slider.focus()
    for _ in range(3):
        slider.press("ArrowRight")
    wait_for(tab, lambda: page.skill == 3)
    tab.wait_for_selector("text=distance (m)", timeout=PATIENCE)
    assert page._stage._shown.tolist() == [one == 3 for one in range(16)]  # type: ignore[attr-defined]

    tab.get_by_text("next", exact=True).click()
    wait_for(tab, lambda: page.skill == 4)
    tab.get_by_text("Pause", exact=True).click()
    wait_for(tab, lambda: not page.playing)
    tab.get_by_text("all", exact=True).click()
    wait_for(tab, lambda: page.skill is None)
    assert colours(tab) > 100
    assert wrong == []


REACH = """address => new Promise(resolve => {
    const socket = new WebSocket(address, "viser-v%s")
    socket.onopen = () => resolve("open")
    socket.onerror = () => resolve("refused")
})"""


def test_another_page_of_the_browser_cannot_reach_it(page: Page, gate: Gate, browser: Any) -> None:
    place = gate.address.replace("http:", "ws:")
    tab, _ = visit(browser, gate.address)
    assert tab.evaluate(REACH % viser.__version__, place) == "open"
    stranger = browser.new_context().new_page()
    stranger.goto("data:text/html,a page of somebody else")
    assert stranger.evaluate(REACH % viser.__version__, place) == "refused"
    stranger.goto(gate.address.replace(gate.token, ""))
    assert stranger.evaluate(REACH % viser.__version__, place.replace(gate.token, "")) == "refused"


def test_the_exported_file_opens_from_disk_without_a_network(run: Path, browser: Any, tmp_path: Path) -> None:
    words = ["gallery", str(run), "--export", str(tmp_path / "page.html"), "--frames", "20", "--steps", "40"]
    assert main(words) == 0
    tab, wrong = visit(browser, (tmp_path / "page.html").as_uri(), offline=True)
    tab.wait_for_selector("input[value='1x']", timeout=PATIENCE)  # The player's speed, beside its bar and button.
    tab.get_by_text("becl on walker, seed 0, 100 steps").click()
    assert tab.locator("#skills tr").count() == 17
    tab.wait_for_timeout(2000)
    assert colours(tab) > 100
    assert wrong == []
