"""Makes frames.npz: pictures of fixed poses by MuJoCo's own renderer, as dm_control draws them, which rays are held to.

    MUJOCO_GL=egl python tests/golden/frames.py

`geom` says which geom each pixel shows (-1: none).
"""

from pathlib import Path

import mujoco
import numpy as np

from becl.envs import DOMAINS
from becl.envs.simulations import Simulations

SIZE = 84
ROBOTS = ("walker", "quadruped")
STEPS = (0, 7, 40, 120)  # Control steps with random actions before each picture.


def poses(name: str) -> np.ndarray:
    """Positions (qpos) after some steps of a random episode."""
    domain = DOMAINS[name]
    simulations = Simulations(domain, domain.primal, 1, 3)
    simulations.reset()
    random, found = np.random.default_rng(0), []
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            found.append(simulations.data(0).qpos.copy())
        simulations.step(random.uniform(-1, 1, (1, domain.action_dim)).astype(np.float32))
    simulations.close()
    return np.stack(found)


def pictures(name: str, qpos: np.ndarray) -> dict[str, np.ndarray]:
    model = DOMAINS[name].model()
    data = mujoco.MjData(model)
    found: dict[str, list[np.ndarray]] = {"picture": [], "geom": []}
    with mujoco.Renderer(model, SIZE, SIZE) as renderer:
        for pose in qpos:
            data.qpos[:] = pose
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, DOMAINS[name].camera)
            found["picture"].append(renderer.render())
            renderer.enable_segmentation_rendering()
            shown = renderer.render()
            renderer.disable_segmentation_rendering()
            geom = shown[..., 1] == int(mujoco.mjtObj.mjOBJ_GEOM)
            found["geom"].append(np.where(geom, shown[..., 0], -1).astype(np.int8))
    return {kind: np.stack(frames) for kind, frames in found.items()}


def main() -> None:
    arrays = {}
    for name in ROBOTS:
        qpos = poses(name)
        arrays[f"{name}/qpos"] = qpos
        arrays |= {f"{name}/{kind}": frames for kind, frames in pictures(name, qpos).items()}
    np.savez_compressed(Path(__file__).parent / "frames.npz", **arrays)


if __name__ == "__main__":
    main()
