"""The documentation keeps up with the code: every option is on its page, no link leads nowhere, and all code runs."""

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented import FENCE, Block, Player, Shared, blocks, importable, stage
from markdown_it import MarkdownIt

import becl
from becl.objectives import METHODS
from becl.objectives.amped import AnInfoNCE
from becl.objectives.aps import APS
from becl.objectives.apt import APT
from becl.objectives.becl import BeCL
from becl.objectives.becl_released import BeCLReleased
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.disagreement import Disagreement
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.icm import ICM
from becl.objectives.proto import ProtoRL
from becl.objectives.rnd import RND
from becl.objectives.smm import SMM
from becl.options import OPTIONS

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "methods"
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
URLB: dict[str, type] = {
    "amped": AnInfoNCE,  # The others of the sum have pages of their own.
    "aps": APS,
    "smm": SMM,
    "icm": ICM,
    "disagreement": Disagreement,
    "rnd": RND,
    "apt": APT,
    "proto": ProtoRL,
    "ddpg": Extrinsic,
}
# Names with a dash are presets of another method, and on its page.
OBJECTIVES = {name: type(method.objective) for name, method in METHODS.items() if "-" not in name} | URLB
OBJECTIVES["becl"] = BeCL  # The paper's; the released formula is on the same page.


def options(page: str) -> dict[str, str]:
    """Option and default of the rows of a page's options table."""
    section = page[page.index("## Options\n") :].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


@pytest.mark.parametrize(("name", "objective"), OBJECTIVES.items())
class TestMethodPage:
    def test_lists_every_option(self, name, objective):
        table = options((PAGES / f"{name}.md").read_text())
        assert list(table) == [field.name for field in dataclasses.fields(objective)]

    def test_states_the_default(self, name, objective):
        table = options((PAGES / f"{name}.md").read_text())
        for field in dataclasses.fields(objective):
            stated = table[field.name].split(";")[0]
            if isinstance(field.default, bool | str):
                assert stated == f"`{field.default}`".replace("True", "true").replace("False", "false"), field.name
            elif isinstance(field.default, int | float):
                assert float(stated) == field.default, field.name

    def test_is_in_the_index_and_links_its_source(self, name, objective):
        assert f"[`{name}`](methods/{name}.md)" in (ROOT / "docs" / "methods.md").read_text()
        source = objective.__module__.rpartition(".")[2]
        assert f"(../../src/becl/objectives/{source}.py)" in (PAGES / f"{name}.md").read_text()


def test_the_released_formula_is_on_the_page_of_becl():
    page = (PAGES / "becl.md").read_text()
    released = page[page.index("## The released formula") : page.index("## Differences")]
    for field in dataclasses.fields(BeCLReleased):
        stated = f"`{field.name}`" + (f" ({field.default:g})" if isinstance(field.default, float) else "")
        assert stated in " ".join(released.split()), field.name


def test_the_released_maze_formula_is_on_the_page_of_becl():
    page = (PAGES / "becl.md").read_text()
    assert all(f"`{field.name}`" in page for field in dataclasses.fields(BeCLReleasedMaze))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(text):
    links = re.findall(r"\]\(([^()\s]+)\)", without_code(text.read_text()))
    paths = [link.partition("#")[0] for link in links if not re.match(r"https?:|mailto:|#", link)]
    assert [path for path in paths if not (text.parent / path).exists()] == []


def without_code(text: str) -> str:
    """Text less its code blocks and formulas, whose brackets are no links."""
    return re.sub(r"```.*?```|\$\$.*?\$\$|\$[^$\n]*\$", "", text, flags=re.DOTALL)


# --- Code blocks ------------------------------------------------------------------------------------------------------

# What a page takes for granted.
BEFORE: dict[str, list[str]] = {
    "README.md": ["becl pretrain square_a --method metra"],
    "docs/evaluation.md": ["becl pretrain walker"],
    "docs/export.md": [
        "becl pretrain walker",
        "becl pretrain walker --method cic",
        "becl pretrain walker --method rnd",
        "becl finetune runs/pretrain-walker-becl",
    ],
    "docs/finetuning.md": ["becl pretrain walker"],
    "docs/gallery.md": [
        "becl pretrain walker",
        "becl pretrain walker --method diayn",
        "becl finetune runs/pretrain-walker-becl",
    ],
    "docs/pretraining.md": ["becl pretrain walker --method diayn"],
    "docs/report.md": [
        "becl pretrain walker",
        "becl pretrain walker --method diayn",
        "becl finetune runs/pretrain-walker-becl",
        "becl finetune runs/pretrain-walker-diayn",
    ],
    "docs/resuming.md": ["becl maze"],
}
# Packages that a page takes to be installed.
INSTALLED: dict[str, dict[str, str]] = {
    "docs/environments.md": {
        "mypackage.py": "import gymnasium\n\n"
        "gymnasium.register('mypackage/Arm-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=50)\n"
    },
}
STAND_IN = ROOT / "tests" / "stand_in"
if importlib.util.find_spec("stable_baselines3") is None:  # It needs PyTorch.
    INSTALLED["docs/intrinsic.md"] = {
        path.relative_to(STAND_IN).as_posix(): path.read_text() for path in STAND_IN.rglob("*.py")
    }
RUNNABLE = [text for text in TEXTS if blocks(text.read_text())]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shared:
    """Runs for all pages and processes of this test session."""
    base = tmp_path_factory.getbasetemp()
    return Shared((base if worker_id == "master" else base.parent) / "documented")


@pytest.mark.pages
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_code_blocks_run(page: Path, shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = name_of(page)
    installed, work = tmp_path / "installed", tmp_path / "work"
    for folder in (installed, work):
        folder.mkdir()
    for file, text in INSTALLED.get(name, {}).items():
        (installed / file).parent.mkdir(parents=True, exist_ok=True)
        (installed / file).write_text(text)
    with importable(installed), stage(work, monkeypatch):
        player = Player(name, shared)
        for command in BEFORE.get(name, []):
            player.play(Block("bash", "", command, 0))
        for block in blocks(page.read_text()):
            player.play(block)


@pytest.mark.parametrize("text", TEXTS, ids=name_of)
def test_commands_within_sentences_exist(text: Path) -> None:
    for command in re.findall(r"`becl ([a-z]+(?: [^`]*)?)`", FENCE.sub("", text.read_text())):
        name, *words = command.split()
        names = [field.name.replace("_", "-") for field in dataclasses.fields(OPTIONS[name])]
        known = {"--plugin", "--help"} | {f"--{name}" for name in names} | {f"--no-{name}" for name in names}
        assert {word for word in words if word.startswith("--")} <= known, command


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    code = "".join(path.read_text() for path in [ROOT / "Makefile", *(ROOT / "src").rglob("*.py")])
    others = {"Killed", "becl: command not found"}  # The shell's.
    messages = {part for text in re.findall(r"^\| `([^`]+)`", page, re.MULTILINE) for part in text.split("…")} - others
    assert {message for message in messages if message.strip() not in code} == set()


# --- The site ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does, a warning being an error."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def article(page: Path) -> str:
    return re.search(r"<article.*</article>", page.read_text(), re.DOTALL)[0]  # type: ignore[index]


@pytest.mark.pages
class TestSite:
    def test_nothing_is_loaded_from_a_network(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            tags = re.findall(r"<(?:script|link|img|iframe|video|source)\b[^>]*>", page.read_text())
            assert [tag for tag in tags if re.search(r'(src|href)="(https?:)?//', tag)] == [], page
        for sheet in site.rglob("*.css"):
            assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text()), sheet

    def test_pages_are_what_a_code_host_makes_of_them(self, site: Path) -> None:
        """As many lists, tables, headings and pictures: the two kinds of Markdown differ in where these begin."""
        host = MarkdownIt("commonmark").enable("table")
        for text in set(TEXTS) - {ROOT / "README.md", ROOT / "docs" / "api.md"}:
            shown = article(site / text.relative_to(ROOT / "docs").with_suffix(".html"))
            expected = host.render(text.read_text())
            for tag in ("li", "table", "tr", "h2", "h3", "img", "pre"):
                found = [len(re.findall(rf"<{tag}[ >]", page)) for page in (shown, expected)]
                assert found[0] == found[1], f"{name_of(text)}: <{tag}>"

    def test_formulas_are_drawn_by_the_browser(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            assert "arithmatex" not in page.read_text(), page
        assert article(site / "theory.html").count("<math ") > 100
        assert "<mi>𝔼</mi>" in article(site / "theory.html")

    def test_every_public_name_is_in_the_reference(self, site: Path) -> None:
        page = article(site / "api.html")
        missing = [name for name in becl.__all__ if f'id="becl.{name}"' not in page]
        assert missing == []


def test_the_paths_through_the_code_are_short_and_name_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    ways = page.partition("## The path of a command")[2].split("### ")[1:]
    assert [way.split()[1] for way in ways] == ["pretrain", "finetune", "report"]
    for way in ways:
        files = re.findall(r"`([a-z_/]+(?:\.py|/))`", "\n".join(re.findall(r"^\| (`.*?) \|", way, re.M)))
        assert 3 < len(files) <= 12
        assert [name for name in files if not (ROOT / "src" / "becl" / name).exists()] == []
