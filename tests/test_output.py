"""Nobody listens: closed pipes, full disks, closed streams and terminals of few letters.

What a stream does is tested in this process; that the process itself ends well, with few programs of their own.
"""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from becl import terminal
from becl.commands.cli import loss_of, main, program, stopped
from becl.errors import Failed, UserError, brief, printable
from becl.invocation import COMMAND
from becl.options import EnvsOptions, MethodsOptions, PretrainOptions, ReportOptions, ResumeOptions
from becl.runs.folder import read_config
from becl.runs.progress import progress
from becl.sweeps import jobs
from becl.terminal import Output, console, streams, table

PRETRAIN = ["pretrain", "square_a", "--method", "diayn", "--skills", "4", "--envs", "2", "--steps", "200",
            "--hidden", "8", "--set", "batch=16", "random_steps=20", "replay.capacity=1000"]  # fmt: skip
NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
NO_READER = BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
NOTHING_THERE = "becl: cannot write what was to be shown: {}\n"


class Failing(io.StringIO):
    """Takes so many writes, then fails."""

    def __init__(self, error: Exception, after: int = 0):
        super().__init__()
        self.error, self.after = error, after

    def write(self, text: str) -> int:
        self.after -= 1
        if self.after < 0:
            raise self.error
        return super().write(text)

    def flush(self) -> None:
        if self.after < 0:
            raise self.error


class TestStream:
    @pytest.mark.parametrize("error", [NO_ROOM, NO_READER, ValueError("I/O operation on closed file")])
    def test_drops_what_cannot_be_written(self, error):
        failing = Failing(error, after=2)
        out = Output(failing)
        for line in range(5):
            print(line, file=out, flush=True)
        assert failing.getvalue() == "0\n"
        assert out.code == 0

    @pytest.mark.parametrize(("error", "code"), [(NO_ROOM, 1), (NO_READER, 141)])
    def test_ends_a_program_that_only_shows_something(self, error, code):
        out = Output(Failing(error))
        out.loss = "ends"
        with pytest.raises(SystemExit) as ended:
            print("methods", file=out)
        assert ended.value.code == code

    @pytest.mark.parametrize(("error", "code"), [(NO_ROOM, 1), (NO_READER, 0)])
    def test_counts_in_the_end_where_files_were_made(self, error, code):
        out = Output(Failing(error))
        out.loss = "counts"
        print("the page is there", file=out)
        assert out.code == code

    def test_nothing_is_left_in_a_buffer_that_could_fail_later(self, tmp_path):
        with open("/dev/full", "w") as full:
            out = Output(full)
            print("x" * 10, file=out)
            out.flush()
            assert isinstance(out.error, OSError)
            full.flush()

    def test_what_commands_lose_by_it(self):
        assert loss_of("envs", EnvsOptions()) == loss_of("methods", MethodsOptions()) == "ends"
        assert loss_of("pretrain", PretrainOptions("walker", dry_run=True)) == "ends"
        assert loss_of("report", ReportOptions((Path("runs"),))) == "counts"
        assert loss_of("pretrain", PretrainOptions("walker")) == loss_of("resume", ResumeOptions(Path())) == "ignored"


class TestLetters:
    def shown(self, text: str, encoding: str) -> str:
        raw = io.BytesIO()
        stream = terminal._opened(io.TextIOWrapper(raw, encoding))
        print(text, file=stream, end="", flush=True)
        return raw.getvalue().decode(encoding)

    def test_all_of_ours_have_a_likeness_in_ascii(self):
        text = "10 × 3 steps · 5 ± 1 … [-1, 1]² − κ → ≤ ≥"
        assert self.shown(text, "ascii") == "10 x 3 steps - 5 +/- 1 ... [-1, 1]2 - kappa -> <= >="
        assert self.shown("ψ", "ascii") == "\\u03c8"

    def test_those_that_a_terminal_has_stay(self):
        assert self.shown("10 × 3 · κ", "latin-1") == "10 × 3 · kappa"
        assert self.shown("10 × 3 · κ", "utf-8") == "10 × 3 · κ"

    def test_names_of_files_that_are_no_text(self):
        assert self.shown(os.fsdecode(b"caf\xe9"), "utf-8") == "caf\\udce9"

    def test_tables_have_other_lines(self, monkeypatch):
        raw = io.BytesIO()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", Output(terminal._opened(io.TextIOWrapper(raw, "ascii"))))
            console().print(table("t", ("a", "b"), [(1, "2 ± 3")]))
            sys.stdout.flush()
            assert "| 1 | 2 +/- 3 |" in raw.getvalue().decode("ascii")

    def test_tables_take_names_as_they_are(self, capsys):
        console().print(table("[/x]", ("[bold]",), [("\x1b[31m[/red]\u202e",)]))
        shown = capsys.readouterr().out
        assert "[/x]" in shown
        assert "[bold]" in shown
        assert "\\x1b[31m[/red]\\u202e" in shown


class TestControlCharacters:
    def test_are_shown_as_escapes(self):
        assert printable("a\x1b[2J\x07\r\x9b\u202e\tb\nc") == "a\\x1b[2J\\x07\\r\\x9b\\u202e\tb\nc"
        assert printable("κ ± 1 · 漢字 é") == "κ ± 1 · 漢字 é"

    @pytest.mark.parametrize("kind", [UserError, Failed])
    def test_of_errors(self, kind):
        assert str(kind("no \x1b]0;title\x07")) == "no \\x1b]0;title\\x07"
        assert brief(ValueError("\x1b[1m")) == "ValueError: \\x1b[1m"

    def test_of_the_command_line(self, capsys):
        assert main(["resume", "runs/\x1b[31mred"]) == 2
        assert capsys.readouterr().err == "becl: 'runs/\\x1b[31mred' has control characters\n"

    @pytest.mark.parametrize("config", [{"env": "\x1b[31m"}, {"run": {"\x1b": 1}}, {"tasks": ["\n"]}])
    def test_of_configurations(self, config, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match="has control characters") as error:
            read_config(tmp_path)
        assert printable(str(error.value)) == str(error.value)


@pytest.fixture
def kept_command():
    before = COMMAND.get()
    yield
    COMMAND.set(before)


@pytest.fixture(scope="module")
def heard(tmp_path_factory) -> set[str]:
    """The files of a run that somebody listens to."""
    out = tmp_path_factory.mktemp("heard") / "run"
    assert main([*PRETRAIN, "--out", str(out)]) == 0
    return files(out)


class TestTraining:
    """Goes on, succeeds, and leaves all files."""

    def test_with_streams_that_fail(self, heard, tmp_path, monkeypatch, kept_command):
        monkeypatch.setattr(sys, "stdout", Failing(NO_ROOM))
        monkeypatch.setattr(sys, "stderr", Failing(NO_READER))
        monkeypatch.setattr(sys, "argv", ["becl", *PRETRAIN, "--out", str(tmp_path / "run")])
        with monkeypatch.context() as patched:
            patched.setattr("becl.commands.cli.answered", contextlib.nullcontext)
            assert main() == 0
        assert files(tmp_path / "run") == heard

    def test_a_bar_that_nobody_sees(self, monkeypatch):
        class Terminal(Failing):
            def isatty(self) -> bool:
                return True

        with streams():
            monkeypatch.setattr(sys, "stderr", Output(Terminal(NO_READER, after=3)))
            with progress(10, "steps") as bar:
                bar.interval = 0.0
                for _ in range(10):
                    bar.advance(1)

    def test_a_log_that_is_full(self, tmp_path):
        """Of a job of a sweep."""

        def told(name, options, words):
            print("x" * 100_000)
            return 0

        order = jobs.Order("one", "pretrain", None, [], told, [], str(tmp_path), os.getcwd(), [], {})
        ended = jobs.run_command(order, tmp_path, Output(Failing(NO_ROOM)))
        assert ended == (0, "")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)).split("tfevents")[0] for path in folder.rglob("*")}


class TestProcess:
    """What Python does at the very end of a program, and what closed streams are to it, needs one."""

    def run(self, shell: str, *words: str) -> tuple[int, str]:
        """The exit code and standard error of `becl WORDS` as a shell command has it."""
        words = ("bash", "-c", f'"$@" {shell}', "bash", sys.executable, "-m", "becl", *words)
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stderr

    @pytest.mark.parametrize(
        ("shell", "code", "error"),
        [
            ("> /dev/full", 1, NOTHING_THERE.format(os.strerror(errno.ENOSPC))),
            (">&-", 1, NOTHING_THERE.format(os.strerror(errno.EBADF))),
            ("> /dev/full 2>&1", 1, ""),
            (">&- 2>&-", 1, ""),
        ],
    )
    def test_that_shows_something(self, shell, code, error):
        assert self.run(shell, "--help") == (code, error)

    @pytest.mark.parametrize("command", [[], ["envs"]])
    def test_that_shows_something_to_a_closed_pipe(self, command):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as pipe:
            words = [sys.executable, "-m", "becl", *command, "--help"]
            done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, timeout=600)
        assert (done.returncode, done.stderr) == (141, b"")

    @pytest.mark.parametrize("shell", ["2> /dev/full", "2>&-"])
    def test_a_mistake_that_cannot_be_told(self, shell):
        assert self.run(shell, "methds") == (2, "")

    def test_closed_streams_are_not_given_to_files(self, tmp_path):
        """Else what is printed, also by compiled code, would land in the first file that is opened."""
        code = (
            "import os, sys; from becl.commands.cli import program\n"
            f"def work():\n    sys.stdout.loss = 'ignored'\n    file = open({str(tmp_path / 'metrics.csv')!r}, 'w')\n"
            "    print('noise'); os.write(1, b'noise'); os.write(2, b'noise'); file.write('1,2')\n    return 0\n"
            "sys.exit(program(work))"
        )
        subprocess.run(["bash", "-c", '"$@" 0<&- 1>&- 2>&-', "bash", sys.executable, "-c", code], timeout=600)
        assert (tmp_path / "metrics.csv").read_text() == "1,2"


def test_a_program_tells_of_a_loss_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("becl.commands.cli.answered", contextlib.nullcontext)
    monkeypatch.setattr(sys, "stdout", Failing(NO_ROOM))
    assert program(lambda: print("x") or 0) == 1
    assert capsys.readouterr().err == NOTHING_THERE.format(NO_ROOM.strerror)
    assert stopped() == 130
