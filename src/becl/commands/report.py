"""`becl report`: from folders of runs to tables, figures and one page that can be sent on."""

from typing import Any

from becl.errors import UserError
from becl.options import ReportOptions
from becl.plugins import ORIGINS
from becl.reports.contents import build
from becl.reports.page import print_summary, write_report
from becl.reports.runs import collect
from becl.runs.folder import check_writable


def run(options: ReportOptions) -> int:
    check(options)
    found = collect(options.runs, plugin_defaults())
    if not found.configurations and not found.pretrainings and not found.studies:
        first, *others = found.left_out
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"nothing to report: {first.what}: {first.why}{more}")
    check_writable(options.out)
    if options.markdown is not None:
        check_writable(options.markdown.parent)
    sections = build(found, options.resamples)
    write_report(found, sections, options)
    print_summary(found, sections)
    print(options.out / "index.html")
    return 0


def check(options: ReportOptions) -> None:
    """Raises on options that cannot work, before anything is read."""
    if not options.runs:
        raise UserError("no runs to report: name folders of becl finetune, or a folder that contains them")
    if options.resamples < 1:
        raise UserError(f"--resamples {options.resamples}: at least 1 is needed")
    if options.out.exists() and not options.out.is_dir():
        raise UserError(f"{options.out} is a file; choose another --out")
    if options.markdown is not None and (options.markdown.suffix != ".md" or options.markdown.is_dir()):
        raise UserError(f"--markdown {options.markdown}: expected a file that ends in .md")


def plugin_defaults() -> dict[str, Any]:
    """The default configurations of methods that plug-ins registered; JAX is loaded only where there are any."""
    if not ORIGINS:
        return {}
    from becl.experiments.defaults import default_configuration

    return {method: default_configuration(method) for method in ORIGINS}
