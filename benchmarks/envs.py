"""How fast the robots are simulated: our layer beside bare MuJoCo and beside dm_control's own loop.

    python -m benchmarks.envs                       three domains, 64 simulations, all cores
    python -m benchmarks.envs jaco --sims 16 64     some of them, other sizes

All follow the same random actions from real starts, for whole episodes, so that automatic restarts (and the background
work for the next ones) are part of our time. Rates vary between machines; compare the ratios.
"""

import argparse
import itertools
import time
import warnings

import numpy as np

from becl.envs import DOMAINS, Simulations, make

EPISODES = 2
REFERENCE_STEPS = 1000  # Of dm_control's single simulation; jaco: four episodes, restarts included.


def actions(env: Simulations, seed: int) -> np.ndarray:
    shape = (env.spec.episode_length, env.num_envs, env.spec.action_dim)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def ours(env: Simulations) -> float:
    """Control steps per second, from the first observation on."""
    env.reset()
    plans = [actions(env, seed) for seed in range(EPISODES)]
    began = time.perf_counter()
    for action in itertools.chain(*plans):
        env.step(action)
    spent = time.perf_counter() - began
    for _, future in env._pending:
        future.result()  # Starts nobody is going to use must not slow down what is timed next.
    return EPISODES * env.spec.episode_length * env.num_envs / spent


def bare(env: Simulations) -> float:
    """The same simulations, starts and actions with nothing but `Batch.step`: no observation, reward or restart."""
    import mujoco
    from mujoco.batch import Batch

    batch = Batch(env.model, env.num_envs, env.threads, persistent=True)
    control = batch.bind("ctrl")
    low, high = env.model.actuator_ctrlrange.astype(np.float32).T
    spent = 0.0
    for seed in range(EPISODES):
        plan = low + (high - low) / 2 * (actions(env, seed) + 1)
        keys = np.stack([np.zeros(env.num_envs, int), np.arange(env.num_envs), np.full(env.num_envs, seed)], axis=1)
        batch.state[:] = env._starts.request(keys).result()[0]
        began = time.perf_counter()
        for ctrl in plan:
            control[:] = ctrl
            batch.step(nstep=env.domain.substeps, stage=int(mujoco.mjtStage.mjSTAGE_VEL))
        spent += time.perf_counter() - began
    return EPISODES * env.spec.episode_length * env.num_envs / spent


def dm_control(domain: str, interface: bool) -> float:
    """dm_control's loop over one simulation.

    With `interface` it gives a learner what we give: flat float32 observations, actions in [-1, 1].
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dm_control import manipulation, suite
        from dm_control.suite.wrappers import action_scale
    if domain == "jaco":
        env = manipulation.load("reach_duplo_features", seed=0)
    else:
        env = suite.load(domain, DOMAINS[domain].primal, task_kwargs={"random": 0})
    if interface:
        env = action_scale.Wrapper(env, minimum=-1.0, maximum=1.0)
    spec = env.action_spec()
    plan = np.random.default_rng(0).uniform(spec.minimum, spec.maximum, (REFERENCE_STEPS, *spec.shape))
    env.reset()
    began = time.perf_counter()
    for action in plan:
        observation = env.step(action).observation  # Restarts on its own.
        if interface:
            np.concatenate([np.ravel(part) for part in observation.values()], dtype=np.float32, casting="same_kind")
    return REFERENCE_STEPS / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domains", nargs="*", default=list(DOMAINS), help="walker, quadruped, jaco")
    parser.add_argument("--sims", type=int, nargs="+", default=[64])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-reference", action="store_true", help="leave out dm_control")
    options = parser.parse_args()

    import mujoco

    print(f"mujoco {mujoco.__version__}; control steps per second, median of {options.repeats}\n")
    columns = ("domain", "simulations", "threads", "dm_control, one process", "the same with becl's interface",
               "bare Batch.step", "becl", "becl / dm_control", "becl costs over bare")  # fmt: skip
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for domain, sims in itertools.product(options.domains, options.sims):
        env = make(domain, num_envs=sims, threads=options.threads)
        measured: dict[str, list[float]] = {"plain": [], "interface": [], "bare": [], "ours": []}
        for _ in range(options.repeats):  # Alternating, so that a busy moment hits all alike.
            for name in ("plain", "interface"):
                measured[name].append(np.nan if options.no_reference else dm_control(domain, name == "interface"))
            measured["bare"].append(bare(env))
            measured["ours"].append(ours(env))
        middle = {name: float(np.median(values)) for name, values in measured.items()}
        ratios = ", ".join(f"{middle['ours'] / middle[name]:.1f}" for name in ("plain", "interface"))
        rates = " | ".join(f"{middle[name]:,.0f}" for name in ("plain", "interface", "bare", "ours"))
        cost = 100 * (middle["bare"] / middle["ours"] - 1)
        print(f"| {domain} | {sims} | {env.threads} | {rates} | {ratios} | {cost:.0f} % |", flush=True)
        env.close()


if __name__ == "__main__":
    main()
