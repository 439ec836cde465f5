"""`becl theory`: the paper's theorems, checked numerically."""

from becl.measure.theory import main
from becl.options import TheoryOptions
from becl.runs.folder import check_writable


def run(options: TheoryOptions) -> int:
    check_writable(options.out)
    main(options.out)
    return 0
