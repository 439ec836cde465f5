"""Ctrl-C at random moments: is any ignored, or a traceback, or a file left half written?

    python -m benchmarks.interrupts --presses 25 --runs results/urlb

Sends SIGINT to `becl report`, `becl theory` and `becl pretrain`, each in a process of its own, at moments between its
beginning and the time that it takes undisturbed. Every process must end with exit code 130 and one line, unless it was
done before the signal came. Prints a line for each that did not, and a table. The first 0.05 seconds, in which Python
itself starts, are left out: nobody can answer there. Needs Linux.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PRETRAIN = ["pretrain", "square_a", "--method", "diayn", "--skills", "4", "--envs", "2", "--steps", "4000",
            "--hidden", "8", "--set", "batch=16", "random_steps=20", "replay.capacity=1000"]  # fmt: skip

LAST = {"report": "index.html", "theory": "theory-decomposition.svg", "pretrain": "result.json"}


def commands(runs: Path, out: Path) -> dict[str, list[str]]:
    return {
        "report": ["report", str(runs), "--resamples", "100", "--out", str(out / "report")],
        "theory": ["theory", "--out", str(out / "theory")],
        "pretrain": [*PRETRAIN, "--out", str(out / "pretrain")],
    }


def undisturbed(words: list[str]) -> float:
    """Seconds that a command takes."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "becl", *words], check=True, capture_output=True)
    return time.monotonic() - began


def press(words: list[str], last: Path, after: float) -> tuple[str, float]:
    """What became of a command that was interrupted, whose `last` file says that it is done, and the seconds that it
    took to end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "becl", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not answers(process.pid):
        time.sleep(0.005)
    time.sleep(after)
    if process.poll() is not None:
        process.communicate()
        return "done before", 0.0
    process.send_signal(signal.SIGINT)
    pressed = time.monotonic()
    out, error = process.communicate()
    took = time.monotonic() - pressed
    said = [line for line in (out + error).splitlines() if line.startswith("becl: stopped")]
    if process.returncode == -signal.SIGINT and last.exists() and "Traceback" not in error:  # Python was tidying up.
        return "done before", took
    if "Traceback" in error or "Exception ignored" in error:
        return f"traceback: {error[-300:]}", took
    return ("stopped" if (process.returncode, len(said)) == (130, 1) else f"code {process.returncode}: {error}"), took


def answers(process: int) -> bool:
    """Whether it has handlers of its own: Python has none for SIGTERM."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presses", type=int, default=25)
    parser.add_argument("--runs", type=Path, default=Path("results/urlb"))
    parser.add_argument("--only", nargs="+", default=["report", "theory", "pretrain"])
    parser.add_argument("--longest", type=float, help="seconds before a press (default: 0.9 of what a command takes)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    # A script's shell has what it starts in the background ignore Ctrl-C, and all that this starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            words = commands(options.runs, Path(folder) / "whole")[name]
            longest = options.longest or 0.9 * undisturbed(words)
            found: list[tuple[str, float]] = []
            for number in range(options.presses):
                out = Path(folder) / str(number)
                after = draw.uniform(0.0, longest)
                ended, took = press(commands(options.runs, out)[name], out / name / LAST[name], after)
                if half := [str(path) for path in out.rglob("*.part*")]:
                    ended = f"left {half[0]}"
                if ended not in ("stopped", "done before"):
                    print(f"{name} after {after:.2f} s: {ended}", flush=True)
                found.append((ended, took))
        stopped, before = (sum(ended == kind for ended, _ in found) for kind in ("stopped", "done before"))
        slowest = max(took for _, took in found)
        rows.append(f"{name:<10}{stopped:>8}{before:>13}{len(found) - stopped - before:>7}{slowest:>12.1f} s")
    print(f"{'':<10}{'stopped':>8}{'done before':>13}{'wrong':>7}{'slowest end':>14}", *rows, sep="\n")


if __name__ == "__main__":
    main()
