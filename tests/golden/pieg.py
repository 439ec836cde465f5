"""Makes pieg.npz: what the original networks make of fixed images, with weights that are random and not ImageNet's.

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch torchvision efficientnet_lite_pytorch
    /tmp/torch/bin/python tests/golden/pieg.py

ResNet-18 is torchvision's, EfficientNet-Lite0 that of efficientnet_lite_pytorch, made for the images' size. `trained`
is after one call in train(), whose averages are kept too; features are of a fusion and a layer as PIE-G has them.
"""

# pyright: reportMissingImports=false

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

STACK, BATCH, UNITS = 3, 2, 8
SIZES = (37, 84)
NETWORKS = ("resnet18", "efficientnet-lite0")


def weights_of(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors of these shapes, by a generator whose numbers never change."""
    random, found = np.random.RandomState(seed), {}
    for name in sorted(shapes):
        shape = shapes[name]
        if len(shape) == 4:
            array = random.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))
        elif name.endswith(("running_var", "weight")):
            array = random.uniform(0.5, 1.5, shape)
        else:
            array = random.normal(size=shape) * 0.1
        found[name] = array.astype(np.float32)
    return found


def images_of(size: int, seed: int = 1) -> np.ndarray:
    """Stacks of frames, [n, height, width, frames · colours]: random blots rather than noise."""
    random = np.random.RandomState(seed)
    coarse = random.randint(0, 256, (BATCH, -(-size // 6), -(-size // 6), 3 * STACK))
    return np.kron(coarse, np.ones((1, 6, 6, 1)))[:, :size, :size].astype(np.uint8)


def layer_of(inputs: int, seed: int = 2) -> np.ndarray:
    """Weights of the trained layer, from (frame or difference, channel, row, column)."""
    random = np.random.RandomState(seed)
    return (random.normal(size=(inputs, UNITS)) / np.sqrt(inputs)).astype(np.float32)


class Original:
    """One of the original networks, cut off at stride 8."""

    def __init__(self, name: str, size: int):
        import torchvision
        from efficientnet_lite_pytorch import EfficientNet

        self.name = name
        made: Any = torchvision.models.resnet18() if name == "resnet18" else None
        self.net = made or EfficientNet.from_name("efficientnet-lite0", image_size=size)
        tensors = self.net.state_dict()
        used = [key for key in tensors if self.uses(key) and not key.endswith("num_batches_tracked")]
        self.weights = weights_of({key: tuple(tensors[key].shape) for key in used})
        import torch

        self.net.load_state_dict({key: torch.tensor(value) for key, value in self.weights.items()}, strict=False)

    def uses(self, key: str) -> bool:
        if self.name == "resnet18":
            return key.startswith(("conv1.", "bn1.", "layer1.", "layer2."))
        return key.startswith(("_conv_stem.", "_bn0.", *(f"_blocks.{number}." for number in range(5))))

    def __call__(self, x: Any) -> Any:
        if self.name == "resnet18":
            for part in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2"):
                x = getattr(self.net, part)(x)
            return x
        x = self.net._swish(self.net._bn0(self.net._conv_stem(x)))
        for block in self.net._blocks[:5]:
            x = block(x)
        return x


def fused(maps: np.ndarray) -> np.ndarray:
    """Features of frames [n, frame, channel, row, column], fused as PIE-G does, through the layer and a LayerNorm."""
    now, before = maps[:, 1:], maps[:, :-1]
    flat = np.concatenate([now, now - before], 1).reshape(len(maps), -1).astype(np.float64)
    out = flat @ layer_of(flat.shape[1])
    return (out - out.mean(1, keepdims=True)) / np.sqrt(out.var(1, keepdims=True) + 1e-5)


def main() -> None:
    import torch

    arrays = {}
    for name in NETWORKS:
        for size in SIZES:
            frames = images_of(size).reshape(BATCH, size, size, STACK, 3).transpose(0, 3, 4, 1, 2)
            x = torch.tensor(frames.reshape(-1, 3, size, size)).float() / 255 - 0.5
            original = Original(name, size)
            for mode in ("eval", "train"):
                original.net.train(mode == "train")
                with torch.no_grad():
                    maps = original(x).numpy()
                place = f"{name}/{size}/{mode}/"
                arrays[place + "features"] = fused(maps.reshape(BATCH, STACK, *maps.shape[1:]))
                if size == SIZES[0]:
                    arrays[place + "maps"] = maps
            after = original.net.state_dict()
            last = "layer2.1.bn2" if name == "resnet18" else "_blocks.4._bn2"
            for part in ("running_mean", "running_var"):
                arrays[f"{name}/{size}/trained/{part}"] = after[f"{last}.{part}"].numpy()
    np.savez_compressed(Path(__file__).parent / "pieg.npz", **arrays)


if __name__ == "__main__":
    main()
