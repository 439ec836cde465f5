"""Seeds as people give them: a count, a range or a list."""

import operator
from collections.abc import Sequence
from typing import Any

from becl.errors import UserError

MOST_SEEDS = 10_000
FORMS = "expected a count (5), a range (100:105) or a list (3,7,9)"


def parse_seeds(text: str) -> tuple[int, ...]:
    """`5` is seeds 0 to 4, `100:105` a range, `3,7,9` a list."""
    try:
        if ":" in text:
            low, high = (int(part) for part in text.split(":"))
            seeds: Sequence[int] = range(low, high)
        elif "," in text:
            seeds = tuple(int(part) for part in text.split(",") if part.strip())
        else:
            seeds = range(int(text))
    except ValueError:
        raise UserError(f"--seeds {text!r}: {FORMS}") from None
    return checked(seeds, text)


def to_seeds(seeds: Any) -> tuple[int, ...]:
    """The seeds that a Python caller means: a count, or the numbers themselves."""
    try:
        if isinstance(seeds, str):
            raise TypeError
        found = (
            range(operator.index(seeds)) if not isinstance(seeds, Sequence) else tuple(operator.index(s) for s in seeds)
        )
    except TypeError:
        raise UserError(f"--seeds {seeds!r}: {FORMS}") from None
    return checked(found, seeds)


def checked(seeds: range | tuple[int, ...], given: object) -> tuple[int, ...]:
    """The seeds, if a run may have them; `given` is what the message quotes."""
    if isinstance(seeds, range) and seeds.stop - seeds.start > MOST_SEEDS:
        raise UserError(f"--seeds {given!r}: at most {MOST_SEEDS:,} seeds")
    if not seeds or min(seeds) < 0:
        raise UserError(f"--seeds {given!r}: at least one seed is needed, and none below 0")
    if max(seeds) >= 2**32:  # JAX makes the same numbers of a seed and of its lowest 32 bits.
        raise UserError(f"--seeds {given!r}: seeds are below 2^32 = {2**32:,}")
    return tuple(seeds)


def seeds_named(seeds: Sequence[int]) -> str:
    """Seeds as a caption has them: seed 3; seeds 0, 1; seeds 0 to 7, 9."""
    stretches: list[list[int]] = []
    for seed in seeds:
        if stretches and seed == stretches[-1][-1] + 1:
            stretches[-1].append(seed)
        else:
            stretches.append([seed])
    parts = [f"{one[0]} to {one[-1]}" if len(one) > 2 else ", ".join(map(str, one)) for one in stretches]
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(parts)}"


def seeds_text(seeds: Sequence[int]) -> str:
    """The shortest text that `parse_seeds` reads as these seeds."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}:{seeds[-1] + 1}"
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
