"""The documentation keeps up with the code: a page a method with every option, and no link into the void."""

import dataclasses
import re
from pathlib import Path

import pytest

from becl.objectives import METHODS
from becl.objectives.aps import APS
from becl.objectives.apt import APT
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.disagreement import Disagreement
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.icm import ICM
from becl.objectives.proto import ProtoRL
from becl.objectives.rnd import RND
from becl.objectives.smm import SMM

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "methods"
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
URLB: dict[str, type] = {
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
OBJECTIVES = URLB | {name: type(method.objective) for name, method in METHODS.items() if "-" not in name}


def options(page: str) -> dict[str, str]:
    """Option and default of the rows of a page's options table."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE))


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
