"""`becl evaluate`: what the skills of a pretrained run do, without training."""

from becl.experiments.evaluation import measure
from becl.options import EvaluateOptions


def run(options: EvaluateOptions) -> int:
    measure(options)
    return 0
