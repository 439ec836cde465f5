"""Ctrl-C and requests to end: never lost, never a traceback, one line and exit code 130.

Each case is a program of its own, which sends itself a signal at a chosen place. Its work would take an hour, so that a
signal that is lost is a test that hangs until its time is up.
"""

import signal
import subprocess
import sys
import textwrap

import pytest

from becl.runs.progress import interrupts

BEGIN = """
import ctypes, os, signal, sys, threading, time, weakref
from becl import signals
from becl.commands.cli import guarded, program

def press(number=signal.SIGINT):
    signal.raise_signal(number)

def go_on():
    while True:
        time.sleep(3600)
"""
STOPPED = (130, "", "becl: stopped\n")


def run(body: str, shell: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Exit code and both streams of a program that does `work`."""
    code = BEGIN + textwrap.dedent(body) + "\nsys.exit(program(work))\n"
    done = subprocess.run([*shell, sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


PLACES = {
    "at once": """
        def work():
            press()
            go_on()
    """,
    "asked to end": """
        def work():
            press(signal.SIGTERM)
            go_on()
    """,
    "a destructor": """
        class Left:
            def __del__(self):
                press()
        def work():
            Left()
            go_on()
    """,
    "a weak reference's callback": """
        class Left: pass
        def work():
            left = Left()
            reference = weakref.ref(left, lambda _: press())
            del left
            go_on()
    """,
    "a callback from C": """
        call = ctypes.CFUNCTYPE(None)(press)
        def work():
            call()
            go_on()
    """,
    "whatever catches all": """
        def work():
            try:
                press()
            except BaseException:
                pass
            go_on()
    """,
    "what makes another error of it": """
        def work():
            try:
                press()
            except BaseException as error:
                raise ImportError("initialization failed") from error
    """,
    "the words about an error": """
        from becl.errors import UserError
        class Late(UserError):
            def __str__(self):
                press()
                return "never said"
        def work():
            raise Late
    """,
    "the end": """
        def work():
            try:
                press()
            except KeyboardInterrupt:
                pass
            return 0
    """,
}


@pytest.mark.parametrize("place", PLACES)
def test_is_one_line_wherever_it_comes(place):
    assert run(PLACES[place]) == STOPPED


def test_waits_for_an_import_to_end(tmp_path):
    """Half a module, or a crash of a compiled one, would be the alternative."""
    (tmp_path / "slow.py").write_text("import signal; signal.raise_signal(signal.SIGINT); print('whole')")
    body = f"""
        sys.path.append({str(tmp_path)!r})
        def work():
            import slow
            go_on()
    """
    assert run(body) == (130, "whole\n", "becl: stopped\n")


def test_cleaning_up_is_not_disturbed():
    """It is raised again only where it was swallowed."""
    body = """
        def work():
            try:
                press()
            finally:
                end = time.monotonic() + 5 * signals.LOOK
                while time.monotonic() < end:
                    pass
                print("clean")
    """
    assert run(body) == (130, "clean\n", "becl: stopped\n")


def test_who_goes_on_says_so():
    """As a maze study does, which draws what is finished."""
    body = """
        def work():
            try:
                press()
            except KeyboardInterrupt:
                signals.heard()
            end = time.monotonic() + 5 * signals.LOOK
            while time.monotonic() < end:
                pass
            print("drawn")
            return 3
    """
    assert run(body) == (3, "drawn\n", "")


def test_the_second_ends_the_process_even_in_compiled_code():
    """Where the main thread hears of nothing: it waits in C for a lock that it holds itself."""
    body = """
        def both():
            for number in signals.SIGNALS:
                os.kill(os.getpid(), number)
        def work():
            lock = ctypes.create_string_buffer(256)
            threading.Timer(0.1, both).start()
            while True:
                ctypes.CDLL(None).pthread_mutex_lock(lock)
    """
    assert run(body) == (130, "", "\nbecl: stopped at once\n")


def test_a_forked_process_has_pythons_own_handlers():
    """Of an environment that works in several: Ctrl-C reaches all of them, and must not count twice."""
    body = """
        def work():
            child = os.fork()
            if child == 0:
                try:
                    press()
                except KeyboardInterrupt:
                    os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            time.sleep(3 * signals.LOOK)
            press()
    """
    assert run(body) == (130, "7\n", "becl: stopped\n")


def test_a_background_job_of_a_script_ignores_it():
    body = """
        def work():
            press()
            return 5
    """
    assert run(body, ("sh", "-c", 'trap "" INT; exec "$@"', "sh")) == (5, "", "")


def test_afterwards_it_ends_the_process():
    body = """
        done = program
        def program(work):
            done(work)
            press()
        def work():
            return 0
    """
    assert run(body) == (-signal.SIGINT, "", "")


class TestLoops:
    """Those that stop where it suits them."""

    def test_one_that_nobody_looked_at_is_raised_in_the_end(self):
        with pytest.raises(KeyboardInterrupt), interrupts():
            signal.raise_signal(signal.SIGINT)

    def test_one_that_was_seen_is_not(self):
        with interrupts() as pressed:
            signal.raise_signal(signal.SIGINT)
            assert pressed()

    def test_no_error_is_hidden_by_it(self):
        def fail() -> None:
            with interrupts():
                signal.raise_signal(signal.SIGINT)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()

    def test_one_that_was_swallowed_before_is_seen(self):
        body = """
            from becl.runs.progress import interrupts
            def work():
                try:
                    press()
                except BaseException:
                    pass
                with interrupts() as pressed:
                    print(pressed())
                return 4
        """
        assert run(body) == (4, "True\n", "")
