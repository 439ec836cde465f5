"""Disagreement: self-supervised exploration via disagreement (Pathak et al. 2019), as in URLB.

Rewards transitions on which an ensemble of forward models f_m disagrees. Unlike the error of a single model, this
fades where noise cannot be predicted, because all models come to agree on its mean:

    loss = mean_m ‖s' − f_m(s, a)‖,      r = mean over dimensions of Var_m[f_m(s, a)]

The variance is unbiased. All models see the same batches and differ only in their initialisation.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network
from becl.objectives.icm import prediction_error
from becl.objectives.protocol import Batch, Metrics
from becl.skills import NoSkill, SkillSpace


class DisagreementState(NamedTuple):
    models: MLP  # Every array has a leading axis of models.
    opt: AdamState


@dataclass(frozen=True)
class Disagreement:
    skills: SkillSpace = NoSkill()
    """None: the policy has no skill."""
    models: int = 5
    """Size of the ensemble."""
    network: Network = Network((1024,), "uniform")
    """Layers of each model. URLB initialises only these uniformly instead of orthogonally."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> DisagreementState:
        keys = jax.random.split(key, self.models)
        models = jax.vmap(lambda key: self.network.init(key, env.obs_dim + env.action_dim, env.obs_dim))(keys)
        return DisagreementState(models, self.optimizer.init(models))

    def fit(self, state: DisagreementState, batch: Batch, key: PRNGKeyArray) -> tuple[DisagreementState, Metrics]:
        del key

        def loss_fn(models: MLP):
            errors = jax.vmap(lambda model: prediction_error(model, batch.obs, batch.action, batch.next_obs))(models)
            return errors.mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.models)
        models, opt = self.optimizer.update(state.models, grads, state.opt)
        inputs = jnp.concatenate([batch.obs, batch.action], -1)
        return DisagreementState(jax.vmap(lambda model: model.observe(inputs))(models), opt), {"loss": loss}

    def reward(
        self, state: DisagreementState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[DisagreementState, Float[Array, " batch"]]:
        del key
        inputs = jnp.concatenate([batch.obs, batch.action], -1)
        return state, disagreement(jax.vmap(lambda model: model(inputs))(state.models))


def disagreement(predictions: Float[Array, "models batch dim"]) -> Float[Array, " batch"]:
    """Variance over the models, averaged over dimensions."""
    return predictions.var(0, ddof=1).mean(-1)
