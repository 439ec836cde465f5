"""Skills in a Gymnasium environment, and one of them taught a task: a script, or cells for an editor that knows `# %%`.

About five minutes on two CPU cores; results go to runs/example-gymnasium/.
"""

# %% [markdown]
# # Skills in an environment that nobody here wrote
# Any Gymnasium environment with numbers as observations and actions will do. Change `ENV`, or hand over a function that
# makes yours.

# %%
from pathlib import Path

import gymnasium
import numpy as np

import becl

ENV = "HalfCheetah-v5"
STEPS = 30_000  # Of pretraining, without a reward.
TASK_STEPS = 10_000  # With the environment's own reward.
OUT = Path("runs/example-gymnasium")


def make() -> gymnasium.Env:
    """Episodes of 200 steps: short ones make a short example."""
    return gymnasium.make(ENV, max_episode_steps=200)


# %% [markdown]
# ## Learn without a reward
# Observations have different units here, so they are whitened by statistics that are kept with the policy. A callback
# hears of every row that is logged.


# %%
class Print(becl.Callback):
    def on_log(self, step, rows):
        print(f"{step:>7,} steps: intrinsic reward {rows[0]['reward']:.3f}")


run = becl.pretrain(
    make,
    "becl",
    skills=8,
    steps=STEPS,
    hidden=128,
    envs=8,
    normalize_obs=True,
    log_every=STEPS // 5,
    out=OUT / "run",
    callbacks=[Print()],
    quiet=True,
)

# %% [markdown]
# ## What do the skills do?
# Each has the same starts. The environment's reward was never seen while they were learned.

# %%
measured = becl.evaluate(run, episodes=3, quiet=True)
for earned, moved in zip(measured.zero_shot, measured.per_skill, strict=True):
    print(f"skill {earned['skill']}: return {earned['return']:7.1f}, {moved.get('distance', 0.0):.2f} m from the start")

# %% [markdown]
# ## A skill is a function
# It takes the environment's own observations and gives actions in its own range: nothing of becl is needed around it.

# %%
best = max(measured.zero_shot, key=lambda row: row["return"])["skill"]
skill, env = run.skill(best), make()
obs, _ = env.reset(seed=0)
total, over = 0.0, False
while not over:
    obs, reward, terminated, truncated, _ = env.step(skill(obs))
    total, over = total + float(reward), terminated or truncated
print(f"skill {best} earns {total:.1f} in one more episode")

# %% [markdown]
# ## Teach it the task
# The best skill goes on learning, now with the reward; beside it the same learner from nothing.

# %%
options = {"steps": TASK_STEPS, "eval_every": TASK_STEPS // 2, "eval_episodes": 3, "final_episodes": 6, "quiet": True}
tuned = becl.finetune(run, skill=f"fixed:{best}", out=OUT / "tuned", **options)
scratch = becl.finetune(scratch=make, hidden=128, envs=8, out=OUT / "scratch", **options)
for name, done in {"pretrained": tuned, "from scratch": scratch}.items():
    print(f"{name:>12}:", ", ".join(f"{row['step']:,}: {row['return']:.0f}" for row in done.scores))

# %% [markdown]
# ## Take it elsewhere
# The policy as a file that other programs load without this package.

# %%
path = tuned.export(OUT / "policy.onnx", force=True)
print(path, f"{path.stat().st_size / 1e6:.1f} MB;", "actions", np.round(tuned.policy()(obs), 2))
