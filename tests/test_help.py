"""Help that people read: every line fits, every default is said, every example can be typed."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from becl import envs
from becl.commands import completion
from becl.commands.cli import HELP, begin, usage
from becl.commands.help import about_of, help_text
from becl.commands.help import written as entry_name
from becl.commands.parse import parse_options
from becl.errors import UserError
from becl.experiments.environments import spec_of
from becl.objectives import METHODS
from becl.objectives.registry import FINETUNE_SKILLS
from becl.options import OPTIONS
from becl.options.fields import Value, marks, options_of
from becl.sweeps.file import read_sweep

NOTHING_BY_DEFAULT = ("Also ", "Any other option", "Write one HTML file", "Number of the skill", "Which task's")
"""How the text of an option begins that does nothing unless it is given, or is needed in some cases."""

PLACES = [(command, name) for command, kind in OPTIONS.items() for name in options_of(kind)]


def shown(command: str, width: int = 80) -> str:
    return help_text(OPTIONS[command], command, width)


@pytest.mark.parametrize("width", [80, 110])
@pytest.mark.parametrize("command", OPTIONS)
def test_lines_fit_and_no_option_has_an_empty_one(command, width):
    parts = shown(command, width).split("\n\n")
    assert max(len(line) for part in parts for line in part.split("\n")) <= width
    assert parts[0].startswith(f"usage: becl {command} ")
    for part in parts[1 + about_of(OPTIONS[command]).text.count("\n\n") + 1 :]:
        assert re.match(r"[A-Z][\w ,]*:\n  \S", part), part
    assert parts[-1].startswith("Examples:\n")


@pytest.mark.parametrize(("command", "name"), PLACES, ids=str)
def test_an_option_is_shown_once_with_what_happens_without_it(command, name):
    option = options_of(OPTIONS[command])[name]
    written = re.escape(entry_name(option))
    found = re.findall(rf"^  {written}(?:$| ).*(?:\n {{22}}.*)*", shown(command), re.MULTILINE)
    assert len(found) == 1
    text = " ".join(found[0].split())
    assert text.endswith(".")
    assert "None" not in text
    said = text.partition("(default: ")[2]
    if option.default in (None, ()) and not said and not option.positional:
        assert text.removeprefix(entry_name(option)).lstrip().startswith(NOTHING_BY_DEFAULT)
    if isinstance(option.default, int) and not option.switch:
        assert said.startswith(f"{option.default:,})")


def test_the_list_of_commands_fits():
    assert max(map(len, usage().splitlines())) <= 80


def test_groups_are_named_and_of_some_size():
    for command in ("pretrain", "finetune", "maze", "video"):
        groups = [option.group for option in options_of(OPTIONS[command]).values() if not option.positional]
        assert len(set(groups)) >= 4
        assert "Options" not in groups
        assert f"{groups[0]}:\n" in shown(command)


def examples(command: str) -> list[str]:
    return [line for line in about_of(OPTIONS[command]).examples.splitlines() if line.startswith("becl ")]


@pytest.mark.parametrize("command", OPTIONS)
def test_examples_can_be_typed(command):
    assert 1 <= len(examples(command)) <= 3
    for line in examples(command):
        _, name, *words = shlex.split(line.partition(" > ")[0])
        assert name == command
        parse_options(OPTIONS[name], name, words)


WHOLE = [
    (command, name)
    for command, name in PLACES
    if get_type_hints(OPTIONS[command])[name] in (int, int | None, tuple[int, ...]) and name != "seeds"
]


@pytest.mark.parametrize(("command", "name"), WHOLE, ids=str)
def test_whole_numbers_may_have_an_exponent(command, name):
    kind = OPTIONS[command]
    needed = [word for one in options_of(kind).values() if one.required for word in
              (["x"] if one.positional else [one.word, "x"])]  # fmt: skip
    found = getattr(parse_options(kind, command, [*needed, options_of(kind)[name].word, "1e5"]), name)
    assert found in (100_000, (100_000,))


def test_marks_are_found_wherever_they_stand():
    for kind in OPTIONS.values():
        for name, hint in get_type_hints(kind, include_extras=True).items():
            assert len([mark for mark in marks(hint) if isinstance(mark, Value)]) <= 1, name


def slips(word: str) -> list[str]:
    """A word with each of its letters left out."""
    begin = 3 if word.startswith("--") else 1
    return [word[:at] + word[at + 1 :] for at in range(begin, len(word))]


def offered(words: list[str]) -> str | None:
    """The nearest name that the error about some words offers."""
    with pytest.raises(UserError) as caught:
        begin(words)
    found = re.search(r"did you mean '([^']+)'", str(caught.value))
    return found and found[1]


def test_the_command_offered_for_a_slip_exists():
    for name in HELP:
        for slip in slips(name):
            assert slip in HELP or offered([slip]) in (None, *HELP)


@pytest.mark.parametrize("command", OPTIONS)
def test_the_option_offered_for_a_slip_exists(command):
    words = [option.word for option in options_of(OPTIONS[command]).values() if not option.positional]
    for word in [*words, "--plugin", "--help"]:
        for slip in slips(word):
            if slip not in words:
                assert offered([command, slip]) in [*words, "--plugin", "--help"]


def test_help_loads_nothing_heavy():
    heavy = ("jax", "numpy", "matplotlib", "mujoco", "gymnasium", "rich")
    code = (
        "import sys; from becl.commands.cli import main; main(['pretrain', '--help']); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "[]"


# --- Completion -------------------------------------------------------------------------------------------------------

TYPED = [
    (["pre"], "pretrain"),
    (["nonsense", ""], ""),
    (["pretrain", "walk"], "walker walker_stand walker_walk walker_run walker_flip"),
    (["pretrain", "walker", "--me"], "--method"),
    (["pretrain", "walker", "--method", "becl-"], "becl-paper becl-released"),
    (["pretrain", "walker", "--method", "=", "becl-"], "becl-paper becl-released"),
    (["pretrain", "--precision", "="], "auto float32 tf32 bf16"),
    (["pretrain", "--dry-run", "jac"], " ".join(name for name in ["jaco", *envs.names()] if name.startswith("jac"))),
    (["pretrain", "--method", "becl", "jaco_reach_top"], "jaco_reach_top_left jaco_reach_top_right"),
    (["pretrain", "walker", "--steps", ""], ""),  # Anything may follow.
    (["maze", "--methods", "becl", "di"], "disagreement diayn"),
    (["maze", "--maze", "square_t"], "square_tree"),
    (["video", "here", "--no"], "--no-gif"),
    (["resume", "f"], "folder folder two"),
    (["resume", "folder", "--w"], "--wandb --workers"),
    (["report", "folder", "folder "], "folder two"),
    (["export", "folder", "--out", "f"], "file folder folder two"),
    (["sweep", "s"], "smoke status"),
    (["finetune", "--skill", "re"], "resampled regress"),
    (["completion", ""], "bash zsh fish"),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    """The script for each shell."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(getattr(completion, shell)() + "\n")
    return folder


@pytest.mark.parametrize(("words", "expected"), TYPED, ids=str)
def test_bash_completes(words, expected, scripts, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    for name in ("folder", "folder two"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    line = " ".join(map(shlex.quote, ["becl", *words]))
    code = f"set -u; . {scripts}/bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _becl; echo ${{COMPREPLY[*]-}}"
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == sorted(expected.split())


def test_completion_knows_every_option_and_choice(scripts):
    for command, kind in OPTIONS.items():
        (table,) = re.findall(rf'^ +{command}\) table="(.*)" ;;$', (scripts / "bash").read_text(), re.MULTILINE)
        assert f'        {command}) table="{table}" ;;\n' in (scripts / "zsh").read_text()
        for option in options_of(kind).values():
            (entry,) = [
                one for one in table.split() if one.partition(":")[0] == ("" if option.positional else option.word)
            ]
            assert not option.choices or entry.endswith(":" + ",".join(option.choices))
            named = f"complete -c becl -n '__fish_seen_subcommand_from {command}' -l "
            name = ("no-" if option.switch and option.default else "") + option.word[2:]
            assert option.positional or f"{named}{name} " in (scripts / "fish").read_text()


def test_what_completion_offers_is_accepted():
    names = completion.names()
    assert names["METHOD"] == list(METHODS)
    for env in names["ENV"]:
        assert spec_of(env).obs_dim > 0
    assert {*names["CHOICE"], "fixed:K"} == {*FINETUNE_SKILLS}
    for word in names["SWEEP"]:
        assert word in ("status", "collect") or read_sweep(word).name


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_their_script(shell, scripts):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    done = subprocess.run([shell, "-n", scripts / shell], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_is_printed(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert begin(["completion", shell]) == 0
        assert f"`becl completion {shell}`" in capsys.readouterr().out
    assert offered(["completion", "bsh"]) == "bash"
