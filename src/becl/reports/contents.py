"""The page's contents: every section for which there is something to say, in order."""

from becl.measure import stats
from becl.measure.published import EXPERT
from becl.reports.comparisons import comparisons
from becl.reports.runs import Found
from becl.reports.sections.ablations import ablation_section
from becl.reports.sections.aggregates import Aggregates, aggregate_section, fewer, profile_section
from becl.reports.sections.curves import curve_section
from becl.reports.sections.gains import help_section
from becl.reports.sections.origins import left_out_section, origin_section
from becl.reports.sections.pretrained import (
    gallery_section,
    pretraining_labels,
    pretraining_section,
    zero_shot_section,
)
from becl.reports.sections.published import published_section
from becl.reports.sections.section import Section
from becl.reports.sections.skills import skill_section
from becl.reports.sections.studies import study_sections
from becl.reports.sections.tasks import task_section
from becl.views.figures.colors import method_styles


def build(found: Found, resamples: int) -> list[Section]:
    """Every section for which there is something to say."""
    configurations = found.configurations
    styles = method_styles([one.label for one in configurations])
    compared = comparisons(configurations)
    sections: list[Section | None] = []
    overall: Aggregates = {}
    if configurations:
        sections.append(help_section(configurations, fewer(resamples)))
        sections.append(task_section(configurations))
    if compared:
        main, *robots = compared
        overall = {label: stats.aggregates(scores, resamples) for label, scores in main.scores.items()}
        sections.append(aggregate_section(main, overall, robots, styles, resamples))
        sections.append(profile_section(main, styles, fewer(resamples)))
    if configurations:
        sections.append(curve_section(configurations, styles))
        sections.append(skill_section(configurations))
        sections.append(ablation_section(configurations))
    if found.pretrainings:
        labelled = pretraining_labels(found.pretrainings)
        sections.append(zero_shot_section(labelled))
        sections.append(gallery_section(labelled))
        sections.append(pretraining_section(labelled))
    sections += study_sections(found.studies)
    if configurations:
        complete = bool(compared) and set(compared[0].tasks) == set(EXPERT)
        sections.append(published_section(configurations, overall if complete else {}))
    sections.append(origin_section(found))
    sections.append(left_out_section(found.left_out))
    return [section for section in sections if section is not None]
