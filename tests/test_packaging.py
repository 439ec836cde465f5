"""What is installed and built: the files that say so agree with each other."""

import re
import runpy
import sys
import tomllib
import types
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from becl import invocation

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]


def test_every_dependency_is_locked_in_a_version_that_fits():
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    for text in PROJECT["dependencies"]:
        needed = Requirement(text)
        assert needed.specifier.contains(locked[needed.name.lower().replace("_", "-")]), text


def test_every_dependency_is_imported():
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    used_by_others = {"imageio-ffmpeg", "trimesh"}  # By imageio and viser, which only ask for them in an extra.
    for text in PROJECT["dependencies"]:
        name = Requirement(text).name
        module = {"pillow": "PIL"}.get(name, name)
        assert name in used_by_others or re.search(rf"^ *(import|from) {module}\b", source, re.MULTILINE), name


def test_the_source_distribution_has_the_package_and_no_results():
    included = BUILD["sdist"]["only-include"]
    assert "src/becl" in included
    assert all((ROOT / path).exists() for path in included)
    assert not {"results", "docs"} & {path.partition("/")[0] for path in included}


def test_checks_of_a_merge_run_on_the_oldest_and_newest_python():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    own = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make ")]
    assert [f"make {target}" for target in re.findall(r"run: make (test|lint|docs)$", workflow, re.MULTILINE)] == own
    known = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"[\d.]+", matrix) == [known[0], known[-1]]
    assert PROJECT["requires-python"] == f">={known[0]}"


@pytest.mark.parametrize("extra", ["cuda", "onnx", "ray", "wandb"])
def test_what_installs_an_extra(extra, monkeypatch):
    assert invocation.to_install(extra) == f"pip install -e '{ROOT}[{extra}]'"
    monkeypatch.setattr(invocation, "checkout", lambda: None)  # As installed from a wheel.
    wanted = [f'{text}; extra == "{extra}"' for text in PROJECT["optional-dependencies"][extra]]
    monkeypatch.setattr(invocation, "own_requirements", lambda: ["numpy>=2", *wanted, 'other; extra == "else"'])
    assert invocation.to_install(extra) == f"pip install '{PROJECT['optional-dependencies'][extra][0]}'"
    monkeypatch.setattr(invocation, "own_requirements", list)
    assert invocation.to_install(extra) == f"pip install '.[{extra}]' in the repository"


def build_file():
    """hatch_build.py, with what stands for the builder's interface."""
    plugin = types.ModuleType("hatchling.metadata.plugin.interface")
    plugin.MetadataHookInterface = object  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, plugin.__name__, plugin)
        return types.SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))


def test_an_index_page_has_whole_addresses_that_lead_to_files():
    text = (ROOT / "README.md").read_text()
    page = build_file().readme(text, "https://example.org/becl", "v1")
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)))
    own = [link for link in links if link.startswith("https://example.org/becl/")]
    assert len(own) > 20
    assert all(link.startswith("https://") for link in links)
    for link in own:
        kind, revision, path = link.removeprefix("https://example.org/becl/").split("/", 2)
        assert (kind, revision) == ("raw" if path.endswith(".png") else "blob", "v1")
        assert (ROOT / path.partition("#")[0]).exists(), link


def test_without_an_address_nothing_leads_nowhere():
    page = build_file().readme((ROOT / "README.md").read_text(), "", "main")
    assert not re.findall(r"\]\((?!https://)[^)]*\)", page)
    assert "[The maze study" not in page
    assert "The maze study has all numbers" in page


@pytest.mark.parametrize(
    ("environment", "address", "revision"),
    [
        ({}, "", "main"),
        ({"BECL_REPOSITORY": "https://a.org/becl/", "BECL_REVISION": "v2"}, "https://a.org/becl", "v2"),
        (
            {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "me/becl", "GITHUB_SHA": "12ab"},
            "https://github.com/me/becl",
            "12ab",
        ),
    ],
)
def test_the_address_comes_from_whoever_builds(environment, address, revision):
    file = build_file()
    assert file.repository(environment) == (address, revision)
    urls = file.urls(address, revision)
    assert "Paper" in urls
    assert ("Source" in urls) == bool(address)
