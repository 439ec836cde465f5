"""Extrinsic: the task's own reward, for finetuning and for DDPG without pretraining.

    r = Σ_k γ^k r_{t+k}      (the n-step return that was sampled)

Nothing is learned besides the policy.
"""

from dataclasses import dataclass

from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.objectives.protocol import Batch, Metrics
from becl.skills import NoSkill, SkillSpace


@dataclass(frozen=True)
class Extrinsic:
    skills: SkillSpace = NoSkill()
    """None from scratch; in finetuning, those the policy was pretrained with."""

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> tuple[()]:
        del key, env
        return ()

    def fit(self, state: tuple[()], batch: Batch, key: PRNGKeyArray) -> tuple[tuple[()], Metrics]:
        del batch, key
        return state, {}

    def reward(self, state: tuple[()], batch: Batch, key: PRNGKeyArray) -> tuple[tuple[()], Float[Array, " batch"]]:
        del key
        return state, batch.reward
