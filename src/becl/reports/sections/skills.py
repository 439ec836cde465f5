"""Choice of the skill: what each skill reaches, and ways to choose among them."""

from collections.abc import Mapping, Sequence

from becl.reports import figures
from becl.reports.comparisons import skill_choices, summarise
from becl.reports.configurations import Configuration, all_tasks
from becl.reports.names import pretty_method, pretty_task
from becl.reports.sections.section import Picture, Section, name_of


def skill_section(configurations: Sequence[Configuration]) -> Section | None:
    each = [one for one in configurations if one.options["skill"] == "each"]
    choices = skill_choices(configurations)
    if not each and not choices:
        return None
    pictures = [skill_picture(name_of("skills", number, len(each)), one) for number, one in enumerate(each)]
    pictures += [choice_picture(name_of("choices", i, len(choices)), group) for i, group in enumerate(choices)]
    data = [
        {"method": pretty_method(one.method), "choice": choice, "label": one.label, "task": task,
         **summarise(one.scores(task))._asdict()}
        for group in choices
        for choice, one in group.items()
        for task in one.outcomes
    ]  # fmt: skip
    return Section(
        "skills",
        "Choice of the skill",
        [
            "Where each skill was finetuned, a run counts in all tables as the mean over its skills, which is what a "
            "skill drawn at random gives; the best skill is known only afterwards and counts nowhere. Skills of "
            "different seeds have nothing to do with each other."
        ],
        pictures=pictures,
        data={"choices": data} if data else {},
    )


def skill_picture(name: str, one: Configuration) -> Picture:
    """Where every skill was finetuned."""
    returns = {
        pretty_task(task): {
            seed: {int(skill or 0): outcome.score_of(skill) for skill in outcome.by_skill}
            for seed, outcome in seeds.items()
        }
        for task, seeds in one.outcomes.items()
    }
    caption = f"{one.label}: a dot is a seed, a bar the mean over seeds, the dashed line the mean over skills."
    return Picture(name, "Return by skill", caption, figures.skill_bars(returns))


def choice_picture(name: str, group: Mapping[str, Configuration]) -> Picture:
    bars = {
        pretty_task(task): {choice: one.scores(task) for choice, one in group.items() if task in one.outcomes}
        for task in all_tasks(group.values())
    }
    method = pretty_method(next(iter(group.values())).method)
    caption = f"{method}: how the skill for a task is chosen; bars are means with standard errors, dots seeds."
    return Picture(name, "Choice of the skill", caption, figures.choice_bars(bars))
