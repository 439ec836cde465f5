"""`becl sweep`: a whole grid of runs, in stages, on one machine or a cluster."""

from becl.commands.cli import execute
from becl.options import SweepOptions
from becl.sweeps.run import run_sweep


def run(options: SweepOptions) -> int:
    return run_sweep(options, execute)
