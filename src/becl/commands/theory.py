"""`becl theory`: the paper's theorems, checked numerically."""

from becl.measure.theory.checks import CHECKS, findings
from becl.measure.theory.statements import statements
from becl.measure.theory.summary import summary
from becl.options import TheoryOptions
from becl.runs.compiling import progress
from becl.runs.folder import check_writable
from becl.views.figures.theory import write_figures


def run(options: TheoryOptions) -> int:
    check_writable(options.out)
    with progress(CHECKS, "checks") as bar:

        def begin(name: str) -> None:
            bar.done += 1 if bar.note else 0
            bar.note, bar.compiling = name, False
            bar.say()

        found = findings(begin)
    print(summary(found))
    print()
    for statement in statements(found):
        print(statement.text)
    for path in write_figures(found, options.out):
        print(path)
    return 0
