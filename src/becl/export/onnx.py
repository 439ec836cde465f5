"""Policies as ONNX graphs. Needs the extra `onnx`."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from becl.errors import UserError
from becl.export.policy import Act
from becl.invocation import to_install

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
SETTINGS: dict[str, dict[str, Any]] = {"LayerNormalization": {"epsilon": 1e-5}}
OPSET = 17  # The first with LayerNormalization.
IR_VERSION = 8  # Of the same release of ONNX.


def check_onnx(out: Path) -> None:
    """Raises where onnx, which writes the file, is not installed."""
    if importlib.util.find_spec("onnx") is None:
        raise UserError(f"--out {out}: onnx is not installed; {to_install('onnx')}")


def to_onnx(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> bytes:
    """A model with input `observation` [batch, observation] and output `action` [batch, action]."""
    from onnx import TensorProto, helper, numpy_helper

    limits = {"low": -1.0, "high": 1.0}
    nodes = NODES
    if "obs.mean" in arrays:
        limits |= {"obs.low": -5.0, "obs.high": 5.0}
        nodes = (*WHITENING, ("MatMul", ("obs", "trunk.weight"), "trunk.product"), *NODES[1:])
    tensors = {**arrays, **{name: np.array(limit, np.float32) for name, limit in limits.items()}}
    sizes = {"observation": len(arrays["trunk.weight"]), "action": len(arrays["out.bias"])}
    observation, action = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in sizes.items()
    )
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], output, **SETTINGS.get(kind, {})) for kind, inputs, output in nodes],
        "policy",
        [observation],
        [action],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="becl",
        producer_version=about["becl"],
    )
    helper.set_model_props(model, dict(about))
    return model.SerializeToString()


def load_onnx(path: Path) -> Act:
    """The policy of an exported .onnx, checked and run by onnx itself."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load_model(path)
    onnx.checker.check_model(model, full_check=True)
    session = ReferenceEvaluator(model)

    def act(obs: np.ndarray) -> np.ndarray:
        found: Any = session.run(["action"], {"observation": np.asarray(obs, np.float32)})
        return found[0]

    return act
