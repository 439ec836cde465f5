"""Says whether anything was learned: compares numbers and their spread with chance, and claims no more than that."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Num

CLEARLY = 1.1  # Times chance. A reward may be a little above chance because its batch was just fitted.
FEWEST = 3  # Rows of a log that are looked at, if it has that many.


class Level(NamedTuple):
    """A mean, and how well it is known."""

    mean: float
    error: float
    """Standard error: between seeds or between rows, whichever is larger; NaN with a single value."""

    @property
    def text(self) -> str:
        """The mean and its error, with as many digits as the error allows."""
        if not self.error > 0:
            return plain(f"{self.mean:.3g}" if abs(self.mean) < 1000 else f"{self.mean:.0f}")
        digits = max(0, 1 - math.floor(math.log10(self.error)))
        return plain(f"{self.mean:.{digits}f}") + f" ± {self.error:.{digits}f}"


def with_error(mean: float, error: float) -> str:
    """A mean and its error, with the digits that the error's first one allows: 324 ± 81, 0.85 ± 0.05."""
    if not error > 0:
        return Level(mean, error).text
    digits = max(0, -math.floor(math.log10(error)))
    return plain(f"{mean:.{digits}f}") + f" ± {error:.{digits}f}"


def plain(number: str) -> str:
    """A number without the sign of what was rounded to 0."""
    return number.lstrip("-") if number.strip("-0.") == "" else number


class Verdict(NamedTuple):
    """What a run's numbers say."""

    sentence: str
    learned: bool | None
    """None if the numbers cannot say."""


def level(values: Float[np.ndarray, "seeds points"]) -> Level:
    """The level of those values that are finite."""
    known = np.isfinite(values)
    by_seed = [row[mask] for row, mask in zip(values, known, strict=True) if mask.any()]
    if not by_seed:
        return Level(math.nan, math.nan)
    means = np.array([row.mean() for row in by_seed])
    rest = np.concatenate([row - mean for row, mean in zip(by_seed, means, strict=True)])
    free = len(rest) - len(means)
    rows = math.sqrt(float(np.square(rest).sum()) / free / len(rest)) if free else math.nan
    seeds = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return Level(float(means.mean()), float(np.fmax(rows, seeds)))


def tenth(points: int) -> int:
    """How many rows are a tenth of a log; at least `FEWEST`, so that they have a spread."""
    return min(points, max(FEWEST, math.ceil(points / 10)))


def judge_reward(
    method: str,
    steps: Num[np.ndarray, " points"],
    reward: Float[np.ndarray, "seeds points"],
    chance: float | None,
    skills: bool = True,
    unit: str = "steps",
) -> Verdict:
    """Judges pretraining by the end of its log, against chance if the method has a level, otherwise the beginning."""
    rows = tenth(len(steps))
    end = level(reward[:, -rows:])
    if chance is None:
        return _without_chance(method, reward, rows, end)
    before = steps[-rows - 1] if rows < len(steps) else 0.0
    was = f"{method}: the reward was {end.text} in the last {steps[-1] - before:,.0f} {unit}"
    if math.isnan(end.error):
        return Verdict(f"{was}; chance is {chance:.3g}, and a single row cannot say if anything was learned", None)
    if end.mean - 2 * end.error <= chance:
        return Verdict(f"{was}, not above chance ({chance:.3g}): nothing to show yet that anything was learned", False)
    if chance > 0 and end.mean < CLEARLY * chance:
        return Verdict(f"{was}, hardly above chance ({chance:.3g}): little was learned yet", False)
    much = f"{end.mean / chance:.2g} times chance" if chance > 0 else "above chance"
    return Verdict(f"{was}, {much} ({chance:.3g}): {'skills can be told apart' if skills else 'it has learned'}", True)


def _without_chance(method: str, reward: Float[np.ndarray, "seeds points"], rows: int, end: Level) -> Verdict:
    """Says what the reward did. It may fall while a method learns: what was new does not stay new."""
    if 2 * rows > reward.shape[1]:
        return Verdict(f"{method}: the reward ended at {end.text}; it has no chance level to compare with", None)
    begin = level(reward[:, :rows])
    went = f"the reward went from {begin.text} in the first tenth of the log to {end.text} in the last"
    return Verdict(f"{method}: {went}; it has no chance level, so it cannot say if anything was learned", None)


def judge_accuracy(accuracy: Float[np.ndarray, " seeds"], skills: int, episodes: int) -> Verdict:
    """Judges skills by how often they are recognised. An episode counts once, as its states resemble each other."""
    found, chance = level(accuracy[:, None]), 1 / skills
    by_chance = math.sqrt(chance * (1 - chance) / (skills * episodes * len(accuracy)))
    if found.mean <= chance + 2 * by_chance:
        said = f"accuracy {found.text}, not clearly above guessing ({chance:.2g})"
        return Verdict(f"skills cannot be told apart: {said}", False)
    said = f"accuracy {found.text}, {found.mean / chance:.2g} times that of guessing ({chance:.2g})"
    return Verdict(f"skills can be told apart: {said}", True)


def judge_returns(
    task: str, first: Float[np.ndarray, " lanes"], last: Float[np.ndarray, " lanes"], noise: float
) -> Verdict:
    """Judges finetuning by its first and last evaluation; `noise` is the error of one evaluation, for a single lane."""
    gain = last - first
    error = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.sqrt(2) * noise
    by = Level(float(gain.mean()), error)
    ends = f"{task}: return {_short(first)} before training, {_short(last)} after it"
    if math.isnan(error):
        return Verdict(f"{ends}; one episode cannot say if it rose", None)
    if by.mean > 2 * error:
        return Verdict(f"{ends}: it rose by {by.text}", True)
    return Verdict(f"{ends}: it did not rise by more than its error ({by.text})", False)


def _short(values: Float[np.ndarray, " lanes"]) -> str:
    mean = float(values.mean())
    return f"{mean:.{0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2}f}"
