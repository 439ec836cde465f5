"""`becl plot`: learning curves of pretraining runs."""

from becl.errors import UserError
from becl.objectives import METHODS
from becl.options import PlotOptions
from becl.runs.folder import check_writable
from becl.runs.metrics import read_metrics, read_run, run_labels
from becl.views.figures.curves import pretraining_curves
from becl.views.figures.style import save


def run(options: PlotOptions) -> int:
    if not options.runs:
        raise UserError("no runs to plot: name folders of becl pretrain")
    folders = [folder.resolve() for folder in options.runs]
    if repeated := [str(one) for one, path in zip(options.runs, folders, strict=True) if folders.count(path) > 1]:
        raise UserError(f"{repeated[0]} given more than once")
    labels = run_labels(options.runs, [read_run(folder, METHODS) for folder in options.runs])
    columns = [read_metrics(folder) for folder in options.runs]
    out = options.out or options.runs[0] / "curves.png"
    check_writable(out.parent)
    stem = out.with_suffix("") if out.suffix in (".png", ".svg") else out
    for path in save(pretraining_curves(dict(zip(labels, columns, strict=True))), stem):
        print(path)
    return 0
