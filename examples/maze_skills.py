"""Skills in a maze, step by step: run it as a script, or cell by cell in an editor that knows `# %%`.

About three minutes on two CPU cores; pictures go to runs/example-maze/.
"""

# %% [markdown]
# # Ten skills without a reward
# A point starts in a corner of a maze. Nobody tells it where to go. Contrastive learning makes the states of one skill
# alike and those of different skills unlike, so that skills end up in different corridors.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import becl
from becl.envs import maze
from becl.envs.maze_batch import MazeBatch

CYCLES = 800  # Of training; the paper has 2500.
STEPS = 60_000  # Of the second part.
OUT = Path("runs/example-maze")

# %% [markdown]
# ## The paper's study, small
# One call trains BeCL beside DIAYN, draws both and returns what was measured. The same call again returns at once.

# %%
rows = becl.maze(["becl", "diayn"], seeds=1, cycles=CYCLES, out=OUT / "study")
for row in rows:
    print(f"{row['label']:>6}: I(S;Z) {row['mutual_information']:.2f} nats, {row['far']:.0f} skills end far away")
print("the picture:", *sorted((OUT / "study").glob("*.png")))

# %% [markdown]
# ## The same maze with the learner of the robots
# `becl pretrain` learns off-policy, from a replay. What it leaves is a folder; what one wants from it is a skill: a
# plain function from an observation to an action.

# %%
run = becl.pretrain("square_a", "becl", skills=10, steps=STEPS, hidden=128, envs=8, out=OUT / "run")
skill = run.skill(3)
print(skill, "· at the start it does", skill(np.zeros(2, np.float32)))

# %% [markdown]
# ## Look at all of them
# Ten skills, five episodes each, drawn where they went.

# %%
environments = MazeBatch(maze.Maze("square_a"), num_envs=5, seed=1)
figure, axes = plt.subplots(figsize=(4, 4))
for number in range(10):
    skill, obs, path = run.skill(number), environments.reset(), []
    for _ in range(environments.spec.episode_length):
        path.append(obs)
        obs = environments.step(skill(obs)).next_obs
    for line in np.stack(path, axis=1):
        axes.plot(*line.T, color=f"C{number}", alpha=0.6)
axes.set_aspect("equal")
axes.set_title(f"ten skills after {STEPS:,} steps")
figure.savefig(OUT / "skills.png", dpi=120)
print(OUT / "skills.png")

# %% [markdown]
# ## In numbers
# How much of the maze they cover together, and how often a state gives its skill away.

# %%
measured = becl.evaluate(run, episodes=5).skills[0]
print(f"cells visited {measured['cells']}, skill told from a state {measured['knn_accuracy']:.0%} (by chance 10%)")
