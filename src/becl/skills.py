"""Skill spaces: what a policy is conditioned on."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


@runtime_checkable
class SkillSpace(Protocol):
    """A distribution over vectors that are appended to observations."""

    @property
    def dim(self) -> int: ...

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        """Independent draws from the prior."""
        ...

    def spread(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        """Draws of the same distribution that cover the space as evenly as `count` allows, in random order."""
        ...


@dataclass(frozen=True)
class NoSkill:
    """For methods whose policy has no skill."""

    @property
    def dim(self) -> int:
        return 0

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        del key
        return jnp.zeros((count, 0))

    spread = sample


@dataclass(frozen=True)
class OneHot:
    """One of `dim` discrete skills, uniformly."""

    dim: int = 16

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        return jax.nn.one_hot(jax.random.randint(key, (count,), 0, self.dim), self.dim)

    def spread(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        # A random offset, so that no skill is favoured when count is not a multiple of dim.
        offset_key, order_key = jax.random.split(key)
        skills = (jnp.arange(count) + jax.random.randint(offset_key, (), 0, self.dim)) % self.dim
        return jax.nn.one_hot(jax.random.permutation(order_key, skills), self.dim)


@dataclass(frozen=True)
class Cube:
    """Uniform in the unit cube."""

    dim: int = 64

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        return jax.random.uniform(key, (count, self.dim))

    spread = sample


@dataclass(frozen=True)
class Sphere:
    """Uniform on the unit sphere."""

    dim: int = 10

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        normal = jax.random.normal(key, (count, self.dim))
        return normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)

    spread = sample


@dataclass(frozen=True)
class Modes:
    """Uniform in the unit cube in one of two modes (MOSS)."""

    dim: int = 32
    by: Literal["half", "sign"] = "half"
    """What tells the modes apart: which half of the numbers is not zero, or their sign."""

    def of_mode(self, key: PRNGKeyArray, mode: Int[Array, " count"]) -> Float[Array, "count dim"]:
        """Draws of given modes, 0 or 1."""
        drawn, mode = jax.random.uniform(key, (len(mode), self.dim)), mode[:, None]
        if self.by == "sign":
            return jnp.where(mode == 1, -drawn, drawn)
        return jnp.where((jnp.arange(self.dim) >= self.dim // 2) == (mode == 1), drawn, 0.0)

    def mode(self, skill: Float[Array, "*batch dim"]) -> Int[Array, "*batch"]:
        """The mode of a skill, 0 or 1."""
        half = self.dim // 2
        upper = skill.sum(-1) < 0 if self.by == "sign" else skill[..., half:].sum(-1) > skill[..., :half].sum(-1)
        return upper.astype(jnp.int32)

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        mode_key, skill_key = jax.random.split(key)
        return self.of_mode(skill_key, jax.random.randint(mode_key, (count,), 0, 2))

    def spread(self, key: PRNGKeyArray, count: int) -> Float[Array, "count dim"]:
        order_key, skill_key = jax.random.split(key)
        return self.of_mode(skill_key, jax.random.permutation(order_key, jnp.arange(count) % 2))


def skill_index(skill: Float[Array, "*batch dim"]) -> Int[Array, "*batch"]:
    """The number of a one-hot skill."""
    return jnp.argmax(skill, axis=-1)
