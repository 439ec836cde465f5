"""How fast robots are drawn: rays in JAX on its device, and MuJoCo's own renderer where there is OpenGL.

    python -m benchmarks.frames                              walker and quadruped, 84x84, 32 pictures a call
    python -m benchmarks.frames walker --size 32 --poses 1 2048

The time of rays is the device's alone, of poses whose kinematics are known; that of MuJoCo's renderer includes them.
Without shadows and reflections a picture needs one ray a pixel instead of three.
"""

import argparse
import os
import time
from collections.abc import Callable

import jax
import numpy as np

from becl.envs import DOMAINS
from becl.envs.frames import MuJoCoFrames, RayFrames, drawer
from becl.envs.rays import Shading
from becl.errors import UserError

SECONDS = 2.0  # Of measuring, at least.


def rate(work: Callable[[], object], count: int) -> float:
    """Pictures a second, and not those of the first call, which compiles."""
    work()
    began, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < SECONDS:
        work()
        done += count
    return done / spent


def poses(name: str, count: int) -> np.ndarray:
    """Random positions near the model's own."""
    qpos = DOMAINS[name].model().qpos0
    return qpos + np.random.default_rng(0).normal(scale=0.2, size=(count, len(qpos)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robots", nargs="*", default=["walker", "quadruped"])
    parser.add_argument("--size", type=int, default=84)
    parser.add_argument("--poses", type=int, nargs="+", default=[32], help="pictures a call")
    options = parser.parse_args()
    print(f"{options.size}x{options.size} on {jax.devices()[0].device_kind}, {os.cpu_count()} cores; pictures/s")
    print(f"{'':12}{'a call':>8}{'rays':>12}{'no shadows':>12}{'MuJoCo':>12}")
    for name in options.robots:
        for count in options.poses:
            frames, qpos = RayFrames(DOMAINS[name], Shading(options.size)), poses(name, count)
            now = jax.device_put(frames.kinematics(qpos))
            cells = []
            for shading in (Shading(options.size), Shading(options.size, shadows=False, reflections=False)):
                draw = drawer(frames.scene, shading)
                cells.append(f"{rate(lambda draw=draw, now=now: draw(now).block_until_ready(), count):,.0f}")
            try:
                renderer = MuJoCoFrames(DOMAINS[name], options.size)
                cells.append(f"{rate(lambda draw=renderer.draw, qpos=qpos: draw(qpos), count):,.0f}")
                renderer.close()
            except UserError:
                cells.append("no OpenGL")
            print(f"{name:12}{count:>8}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
