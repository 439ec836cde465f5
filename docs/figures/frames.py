"""Draws docs/figures/frames.png: `python docs/figures/frames.py`. Above MuJoCo's renderer, below rays in JAX."""

from pathlib import Path

import numpy as np
from PIL import Image

from becl.envs import DOMAINS
from becl.envs.frames import RayFrames
from becl.envs.rays import Shading

HERE = Path(__file__).parent
LARGER = 2

golden = np.load(HERE.parents[1] / "tests" / "golden" / "frames.npz")
columns = []
for name in ("walker", "quadruped"):
    for number in (0, 2):
        qpos, theirs = golden[f"{name}/qpos"][number], golden[f"{name}/picture"][number]
        ours = RayFrames(DOMAINS[name], Shading(84)).draw(qpos[None])[0]
        columns.append(np.concatenate([theirs, np.full((2, 84, 3), 255, np.uint8), ours]))
        columns.append(np.full((170, 2, 3), 255, np.uint8))
picture = np.concatenate(columns[:-1], axis=1)
Image.fromarray(picture.repeat(LARGER, 0).repeat(LARGER, 1)).save(HERE / "frames.png", optimize=True)
