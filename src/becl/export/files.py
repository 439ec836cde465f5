"""`becl export`: the policy of one skill as a file that others can load without this package.

A policy acts on an observation with a skill beside it. With the skill fixed, what its rows of the first layer's weights
give is a constant, which is added to the bias: what is left maps observations to actions,

    x = tanh(LayerNorm(obs · trunk.weight + trunk.bias) · norm.gain + norm.shift)
    a = tanh(relu(x · hidden.weight + hidden.bias) · out.weight + out.bias)

(where observations are whitened, with min(max((obs − obs.mean) / obs.std, −5), 5) in place of obs) as eight or ten
arrays (npz, safetensors) or as a graph (ONNX, written here field by field). The written file is read again and
has to act like the run's own network before it is left.
"""

import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from becl.errors import UserError, unknown
from becl.experiments.evaluation import check_place, choose_seed, choose_snapshot
from becl.export.policy import Act, fold
from becl.runs.provenance import own_version

if TYPE_CHECKING:
    from becl.learning.ddpg import Actor
    from becl.learning.offpolicy import OffPolicy
    from becl.skills import SkillSpace

FORMATS = ("npz", "safetensors", "onnx")
TOLERANCE = 1e-5  # Between actions of the file and of the run's network.
FORWARD = (
    "x = tanh(norm(obs @ trunk.weight + trunk.bias) * norm.gain + norm.shift); "
    "action = tanh(relu(x @ hidden.weight + hidden.bias) @ out.weight + out.bias); "
    "norm(y) = (y - mean(y)) / sqrt(var(y) + 1e-5) over units"
)
WHITENED = "obs = clip((obs - obs.mean) / obs.std, -5, 5); "


@dataclass(frozen=True)
class ExportCommand:
    """Write the policy of one skill as a file that others can load without this package."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of `becl pretrain` or `becl finetune`."""
    out: Path
    """File to write; .npz, .safetensors or .onnx."""
    skill: str | None = None
    """Its number; for continuous skills numbers separated by commas, or which of the draws of `becl evaluate`. A
    finetuned policy has its own."""
    seed: int | None = None
    """The run's first by default."""
    snapshot: int | None = None
    """Steps of pretraining; the last by default."""
    task: str | None = None
    """Of a finetuned run with several."""
    format: Literal["npz", "safetensors", "onnx"] | None = None
    """That of the file's name by default."""
    force: bool = False
    """Replace the file where there is one."""


class Policy(NamedTuple):
    """What a run holds for a command: the network, the skill it gets, and words about both."""

    actor: "Actor"
    skill: np.ndarray
    source: Path
    about: dict[str, Any]


def export_command(command: ExportCommand) -> int:
    kind = choose_format(command.out, command.format)
    check_out(command.out, command.force)
    policy = find_policy(command)
    if command.out.resolve() == policy.source.resolve():
        raise UserError(f"--out {command.out}: that is the file the policy is read from")
    difference = write(policy, command.out, kind)
    about = policy.about
    if not difference <= TOLERANCE:
        print(
            f"becl: failed: actions of the written file differ by {difference:.2g} from the run's, more than "
            f"{TOLERANCE:g}; nothing is left",
            file=sys.stderr,
        )
        return 1
    what = [about["method"], about["task"] or about["env"], f"seed {about['seed']}", f"{about['step']:,} steps"]
    what += [f"skill {about['skill']}"] if about["skill"] != "" else ["a continuous skill"] if len(policy.skill) else []
    print(f"{', '.join(what)} → {command.out} ({command.out.stat().st_size / 1e6:.1f} MB)")
    print(
        f"observation ({about['observation_dim']}) → action ({about['action_dim']}) in [-1, 1]; read again, its "
        f"actions differ from the run's by at most {difference:.1g}"
    )
    return 0


# --- What is asked for ------------------------------------------------------------------------------------------------


def choose_format(out: Path, wanted: str | None) -> str:
    """The format of a file's name, which has to agree with the one asked for."""
    suffix = out.suffix.lower().removeprefix(".")
    if wanted is not None and suffix != wanted:
        raise UserError(f"--out {out}: a file of --format {wanted} ends in .{wanted}")
    if suffix not in FORMATS:
        raise UserError(f"--out {out}: the name has to end in .npz, .safetensors or .onnx")
    return suffix


def check_out(out: Path, force: bool) -> None:
    """Refuses a place that cannot be written to; writes nothing."""
    try:
        if out.is_dir():
            raise UserError(f"--out {out} is a folder; name a file")
        if out.exists() and not force:
            raise UserError(f"{out} exists; --force replaces it")
        check_place(out.parent)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None


def find_policy(command: ExportCommand) -> Policy:
    """The policy that a command names, checked and read."""
    from becl.runs.folder import named_arrays

    policy = finetuned(command) if is_tuned(command.run) else pretrained(command)
    if bad := [name for name, array in named_arrays(policy.actor).items() if not np.isfinite(array).all()]:
        raise UserError(f"{policy.source}: actor.{bad[0]} has numbers that are not finite")
    return policy


def is_tuned(folder: Path) -> bool:
    """Whether a run with policies was finetuned."""
    from becl.runs.folder import read_config

    command = read_config(folder).get("command")
    if command not in ("pretrain", "finetune"):
        raise UserError(f"{folder} holds no run of becl pretrain or becl finetune")
    return command == "finetune"


def pretrained(command: ExportCommand) -> Policy:
    import jax

    from becl.experiments.pretraining import load_pretraining
    from becl.experiments.snapshots import learner_shapes, snapshot_path, without_optimizers
    from becl.runs.folder import load_arrays

    made = load_pretraining(command.run)
    if command.task is not None:
        raise UserError(f"--task {command.task}: {command.run} was pretrained without a task; leave it out")
    seed = choose_seed(command.run, made.seeds, command.seed)
    step = choose_snapshot(command.run, [seed], command.snapshot)
    skill, name = choose_skill(made.method, made.run.objective.skills, command.skill)
    source = snapshot_path(command.run, seed, step)
    objective = jax.eval_shape(lambda: made.run.objective.init(jax.random.key(0), made.run.seen))
    like = {"learner": learner_shapes(made.run), "objective": without_optimizers(objective)}
    actor = load_arrays(source, like)["learner"].actor
    about = describe(made.run, made.env, made.method, seed, step, skill, name)
    return Policy(actor, skill, source, about)


def finetuned(command: ExportCommand) -> Policy:
    from becl.experiments.lanes import Lane
    from becl.experiments.policies import load_policies, load_policy, policy_path

    made = load_policies(command.run, command.snapshot)
    seed = choose_seed(command.run, made.seeds, command.seed)
    task = choose_task(command.run, made.tasks, command.task)
    space = made.run.objective.skills
    chosen = None
    if made.skill in ("each", "resampled") and (command.skill is not None or made.skill == "each"):
        chosen = choose_skill(made.method, space, command.skill)
    elif command.skill is not None:
        why = "its policy has no skill" if not space.dim else "its policy has learned with one skill, which it keeps"
        raise UserError(f"--skill {command.skill}: {why}; leave it out")
    lane = Lane(task, seed, int(chosen[1]) if made.skill == "each" and chosen else None)
    actor, kept = load_policy(made, command.run, lane)
    skill, name = chosen or stored_skill(space, kept)
    about = describe(made.run, made.env, made.method, seed, made.steps, skill, name)
    about |= {"task": task, "pretraining_steps": made.snapshot}
    return Policy(actor, skill, policy_path(command.run, lane), about)


def choose_task(folder: Path, tasks: Sequence[str], wanted: str | None) -> str:
    if wanted is None:
        if len(tasks) > 1:
            raise UserError(f"--task: choose one; {folder} has {', '.join(tasks)}")
        return tasks[0]
    if wanted not in tasks:
        raise unknown(f"task of {folder}", wanted, tasks)
    return wanted


def choose_skill(method: str, space: "SkillSpace", text: str | None) -> tuple[np.ndarray, str]:
    """The vector that a text stands for, and the skill's number where it has one."""
    from becl.measure.skills import DRAWS, skills_of
    from becl.skills import NoSkill, OneHot

    if isinstance(space, NoSkill):
        if text is not None:
            raise UserError(f"--skill {text}: {method} has no skills; leave it out")
        return np.zeros(0, np.float32), ""
    if isinstance(space, OneHot):
        if text is None or not text.isdecimal() or int(text) >= space.dim:
            given = "" if text is None else f" {text}"
            raise UserError(f"--skill{given}: choose one; {method} has 0 to {space.dim - 1}")
        return skills_of(space)[int(text)], str(int(text))
    if text is not None and text.isdecimal() and int(text) < DRAWS:
        return skills_of(space)[int(text)], ""
    return parse_vector(method, space, text), ""


def parse_vector(method: str, space: "SkillSpace", text: str | None) -> np.ndarray:
    """A continuous skill from its numbers; directions are brought to length 1."""
    from becl.measure.skills import DRAWS
    from becl.skills import Cube

    where = "in [0, 1]" if isinstance(space, Cube) else "that are a direction"
    needed = f"{method} needs {space.dim} numbers {where}, separated by commas, or 0 to {DRAWS - 1} for a draw"
    given = "" if text is None else f" {text if len(text) < 40 else text[:36] + '…'}"
    try:
        vector = np.array([float(part) for part in (text or "").split(",")])
    except ValueError:
        raise UserError(f"--skill{given}: {needed}") from None
    if len(vector) != space.dim or not np.isfinite(vector).all():
        raise UserError(f"--skill{given}: {needed}")
    if isinstance(space, Cube):
        if vector.min() < 0 or vector.max() > 1:
            raise UserError(f"--skill{given}: {needed}")
        return vector.astype(np.float32)
    length = np.linalg.norm(vector)
    if not length:
        raise UserError(f"--skill{given}: {needed}")
    return (vector / length).astype(np.float32)


def stored_skill(space: "SkillSpace", vector: np.ndarray) -> tuple[np.ndarray, str]:
    """The skill kept beside a finetuned policy, and its number where it has one."""
    from becl.skills import OneHot

    return vector, str(int(vector.argmax())) if isinstance(space, OneHot) else ""


def describe(
    run: "OffPolicy", env: str, method: str, seed: int, step: int, skill: np.ndarray, name: str
) -> dict[str, Any]:
    """What goes into a file beside its arrays."""
    from becl.envs import maze
    from becl.envs.external import is_foreign

    ends = "0.95 of a cell" if env in maze.names() else "the ends of an actuator's control range"
    if is_foreign(env):
        ends = "the ends of the environment's own range"
    learner: Any = run.learner
    return {
        "becl": own_version() or "",
        "env": env,
        "task": "",
        "method": method,
        "seed": seed,
        "step": step,
        "skill": name,
        "skill_vector": [float(number) for number in skill],
        "observation_dim": run.env.obs_dim,
        "action_dim": run.env.action_dim,
        "action_range": f"[-1, 1], the mean action without noise; -1 and 1 are {ends}",
        "forward": (WHITENED if learner.normalize else "") + FORWARD,
    }


# --- The file ---------------------------------------------------------------------------------------------------------


def write(policy: Policy, out: Path, kind: str) -> float:
    """Writes, reads again, and returns by how much actions differ; leaves nothing where that is too much."""
    arrays = fold(policy.actor, policy.skill)
    unfinished = out.with_name(f"{out.stem}.part.{kind}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            save(unfinished, kind, arrays, policy.about)
            act = load_onnx(unfinished) if kind == "onnx" else load_policy(unfinished)
            difference = compare(act, policy)
            if difference <= TOLERANCE:
                unfinished.replace(out)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None
    return difference


def save(path: Path, kind: str, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    import safetensors.numpy

    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    if kind == "npz":
        with path.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    elif kind == "safetensors":
        path.write_bytes(safetensors.numpy.save(arrays, texts))
    else:
        path.write_bytes(to_onnx(arrays, texts))


def compare(act: Act, policy: Policy) -> float:
    """The largest difference to the run's own network over some observations in [-1, 1]."""
    import jax
    import jax.numpy as jnp

    from becl.nn.networks import computing

    # Not farther out: there float32 alone makes two computations of the same actions differ by 1e-5.
    obs = np.random.default_rng(0).uniform(-1, 1, (300, policy.about["observation_dim"])).astype(np.float32)
    skill = np.broadcast_to(policy.skill, (len(obs), len(policy.skill)))
    with computing("float32"):
        actions = jax.jit(policy.actor.__call__)(jnp.concatenate([obs, skill], -1))
    found = act(obs)
    return float(np.abs(found - np.asarray(actions)).max()) if found.shape == actions.shape else math.inf


def load_policy(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """A policy from an exported .npz or .safetensors, with nothing but NumPy."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            w = dict(file)
    else:
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__")
        ends = {name: [start + end for end in entry["data_offsets"]] for name, entry in header.items()}
        w = {name: np.frombuffer(data[low:high], "<f4") for name, (low, high) in ends.items()}
        w = {name: array.reshape(header[name]["shape"]) for name, array in w.items()}

    def act(obs):
        x = np.asarray(obs, np.float32)
        if "obs.mean" in w:
            x = np.clip((x - w["obs.mean"]) / w["obs.std"], -5, 5)
        x = x @ w["trunk.weight"] + w["trunk.bias"]
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = np.tanh(x * w["norm.gain"] + w["norm.shift"])
        x = np.maximum(x @ w["hidden.weight"] + w["hidden.bias"], 0)
        return np.tanh(x @ w["out.weight"] + w["out.bias"])

    return act


# --- ONNX -------------------------------------------------------------------------------------------------------------
# A model is a protocol buffer (onnx.proto): nested messages of numbered fields. Only what these graphs need is here.

NODES = (
    ("MatMul", ("observation", "trunk.weight"), "trunk.product"),
    ("Add", ("trunk.product", "trunk.bias"), "trunk.sum"),
    ("LayerNormalization", ("trunk.sum", "norm.gain", "norm.shift"), "norm"),
    ("Tanh", ("norm",), "trunk"),
    ("MatMul", ("trunk", "hidden.weight"), "hidden.product"),
    ("Add", ("hidden.product", "hidden.bias"), "hidden.sum"),
    ("Relu", ("hidden.sum",), "hidden"),
    ("MatMul", ("hidden", "out.weight"), "out.product"),
    ("Add", ("out.product", "out.bias"), "out.sum"),
    ("Tanh", ("out.sum",), "mean"),
    ("Clip", ("mean", "low", "high"), "action"),  # Some runtimes approximate tanh, to 1.0000001.
)
WHITENING = (
    ("Sub", ("observation", "obs.mean"), "obs.centred"),
    ("Div", ("obs.centred", "obs.std"), "obs.scaled"),
    ("Clip", ("obs.scaled", "obs.low", "obs.high"), "obs"),
)
OPSET = 17  # The first with LayerNormalization.
IR_VERSION = 8  # Of the same release of ONNX.
FLOAT = 1  # A type of tensors and of attributes.


def to_onnx(arrays: dict[str, np.ndarray], about: dict[str, str]) -> bytes:
    """A model with input `observation` [batch, observation] and output `action` [batch, action]."""
    from becl.runs.events import _field, _message, _varint

    def number(field: int, value: int) -> bytes:
        return _field(field, 0, _varint(value))

    def text(field: int, value: str) -> bytes:
        return _message(field, value.encode())

    def node(kind: str, inputs: Sequence[str], output: str) -> bytes:
        fields = b"".join(text(1, name) for name in inputs) + text(2, output) + text(3, output) + text(4, kind)
        if kind == "LayerNormalization":
            epsilon = text(1, "epsilon") + _field(2, 5, struct.pack("<f", 1e-5)) + number(20, FLOAT)
            fields += _message(5, epsilon)
        return fields

    def tensor(name: str, array: np.ndarray) -> bytes:
        dims = b"".join(number(1, size) for size in array.shape)
        return dims + number(2, FLOAT) + text(8, name) + _message(9, array.astype("<f4").tobytes())

    def value(name: str, size: int) -> bytes:
        shape = _message(1, text(2, "batch")) + _message(1, number(1, size))
        return text(1, name) + _message(2, _message(1, number(1, FLOAT) + _message(2, shape)))

    nodes = (*WHITENING, ("MatMul", ("obs", "trunk.weight"), "trunk.product"), *NODES[1:])
    graph = b"".join(_message(1, node(*entry)) for entry in (nodes if "obs.mean" in arrays else NODES))
    graph += text(2, "policy")
    ends = {"low": np.array(-1.0), "high": np.array(1.0)}
    if "obs.mean" in arrays:
        ends |= {"obs.low": np.array(-5.0), "obs.high": np.array(5.0)}
    graph += b"".join(_message(5, tensor(name, array)) for name, array in (arrays | ends).items())
    graph += _message(11, value("observation", len(arrays["trunk.weight"])))
    graph += _message(12, value("action", len(arrays["out.bias"])))
    model = number(1, IR_VERSION) + text(2, "becl") + text(3, about["becl"]) + _message(7, graph)
    model += _message(8, text(1, "") + number(2, OPSET))
    return model + b"".join(_message(14, text(1, name) + text(2, words)) for name, words in about.items())


def load_onnx(path: Path) -> Act:
    """A policy from an exported .onnx: its graph node by node, for the few kinds of nodes that policies have."""
    graph = dict(read_fields(path.read_bytes()))[7]
    parts = list(read_fields(graph))
    tensors = dict(read_tensor(data) for field, data in parts if field == 5)
    nodes = [list(read_fields(data)) for field, data in parts if field == 1]

    def normal(x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + shift

    kinds: dict[str, Callable[..., np.ndarray]] = {
        "MatMul": np.matmul,
        "Add": np.add,
        "Sub": np.subtract,
        "Div": np.divide,
        "LayerNormalization": normal,
        "Tanh": np.tanh,
        "Relu": lambda x: np.maximum(x, 0),
        "Clip": np.clip,
    }

    def act(obs: np.ndarray) -> np.ndarray:
        values = {**tensors, "observation": np.asarray(obs, np.float32)}
        for node in nodes:
            inputs = [values[data.decode()] for field, data in node if field == 1]
            words = {field: data.decode() for field, data in node if field in (2, 4)}
            values[words[2]] = kinds[words[4]](*inputs)
        return values["action"]

    return act


def read_tensor(data: bytes) -> tuple[str, np.ndarray]:
    fields = list(read_fields(data))
    single = dict(fields)
    shape = [size for field, size in fields if field == 1]
    return single[8].decode(), np.frombuffer(single[9], "<f4").reshape(shape)


def read_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: a whole number, or bytes."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = data[place]
            place += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while place < len(data):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
            continue
        size = {2: varint, 5: lambda: 4}[wire]()
        yield field, data[place : place + size]
        place += size
