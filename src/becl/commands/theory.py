"""`becl theory`: the paper's theorems, checked numerically."""

from becl.measure.theory.checks import findings
from becl.measure.theory.summary import summary
from becl.options import TheoryOptions
from becl.runs.folder import check_writable
from becl.views.figures.theory import write_figures


def run(options: TheoryOptions) -> int:
    check_writable(options.out)
    found = findings()
    print(summary(found))
    write_figures(found, options.out)
    return 0
