"""`becl maze`: the paper's maze study."""

import sys
from pathlib import Path

from becl.experiments.maze_results import write_summary
from becl.experiments.maze_reuse import suitable, take_over
from becl.experiments.maze_study import Study, make_study, note_seeds, unfinished
from becl.experiments.workers import execute
from becl.options import MazeOptions
from becl.runs.folder import open_folder
from becl.runs.lock import Lost, locked, seeds_lock
from becl.signals import STOPPED, heard
from becl.views.maze_report import draw, print_table

NEXT_STEPS = """
What you see: each colour is a skill, learned without any reward; trajectories start at the black dot. What to try next
(`. .venv/bin/activate` puts `becl` on your path):
  becl maze --seeds 2                                  four methods, full budget: about 15 minutes on two cores
  becl maze --demo --maze square_tree --out demo-tree  another maze
  becl maze --study temperature                        what the temperature κ does
  becl methods, becl envs, becl theory                 the methods, the environments, and the theorems checked"""


def run(options: MazeOptions) -> int:
    out = folder_of(options)
    study = make_study(options)
    for folder in options.reuse:
        suitable(study, folder)
    open_folder(study.config(), out)
    if options.reuse:
        with locked(out):
            print(f"{take_over(study, out, options.reuse)} runs taken over from {', '.join(map(str, options.reuse))}")
    if options.train_only:
        return train_study(study, out, options.workers)
    return run_study(study, out, options.workers, demo=options.demo)


def folder_of(options: MazeOptions) -> Path:
    return options.out or (Path("demo") if options.demo else Path("runs") / f"maze-{options.study}")


def run_study(study: Study, out: Path, workers: int | None, demo: bool) -> int:
    """Trains, then draws and tabulates whatever is finished, also after Ctrl-C."""
    with locked(out):
        try:
            return _run_study(study, out, workers, demo)
        except Lost as error:
            print(f"becl: failed: {error}", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"becl: failed: cannot write in {out}: {error.strerror}", file=sys.stderr)
            return 1


def train_study(study: Study, out: Path, workers: int | None) -> int:
    """Trains some seeds of a study whose others may be trained elsewhere at the same time."""
    todo = unfinished(study, out)
    if not todo:
        print(f"already finished: {out}/")
        return 0
    try:
        with locked(out, seeds_lock(study.seeds)):
            failures = execute(study, out, workers)
    except OSError as error:
        failures = [f"cannot write in {out}: {error.strerror}"]
    for failure in failures:
        print(f"becl: failed: {failure}", file=sys.stderr)
    print(f"{len(todo) - len(unfinished(study, out))} of {len(todo)} runs trained · {out}/")
    return 1 if failures else 0


def _run_study(study: Study, out: Path, workers: int | None, demo: bool) -> int:
    note_seeds(study, out)
    todo = len(unfinished(study, out))
    total = len(study.runs) * len(study.seeds)
    names = ", ".join(study.runs)
    print(f"{names} · {study.cycles:,} cycles · {total - todo} of {total} runs already finished · {out}/")
    interrupted, failures = False, []
    try:
        failures = execute(study, out, workers)
    except KeyboardInterrupt:
        heard()
        interrupted = True
    summary = write_summary(study, out)
    if summary:
        print_table(summary, study)
        for path in draw(study, out, demo):
            print(path)
    for failure in failures:
        print(f"becl: failed: {failure}", file=sys.stderr)
    left = len(unfinished(study, out))
    if interrupted:
        kept = f"{total - left} of {total} runs are finished in {out}/"
        print(f"becl: stopped; {kept}; the same command, or becl resume {out}, continues", flush=True)
        return STOPPED
    if demo and not failures:
        print(NEXT_STEPS)
    return 1 if failures else 0
