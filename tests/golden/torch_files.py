"""Makes resnet18.pth and lite0.pth: files as torch writes them, in its format of today and in the older one.

    /tmp/torch/bin/python tests/golden/torch_files.py       (set up as pieg.py says)

Their tensors have the names and shapes of the networks' own, and each is one number all over, which torch keeps once:
the place of the tensor among all names in order, divided by 1024.
"""

# pyright: reportMissingImports=false

from collections import OrderedDict
from pathlib import Path


def main() -> None:
    import torch
    import torchvision
    from efficientnet_lite_pytorch import EfficientNet

    here = Path(__file__).parent
    networks = {"resnet18": torchvision.models.resnet18(), "lite0": EfficientNet.from_name("efficientnet-lite0")}
    for name, network in networks.items():
        tensors = network.state_dict()
        numbers = {key: place / 1024 for place, key in enumerate(sorted(tensors))}
        kept = OrderedDict((key, torch.tensor(numbers[key]).expand(tensors[key].shape)) for key in tensors)
        for key in [key for key in kept if key.endswith("num_batches_tracked")]:
            kept[key] = torch.tensor(7)
        torch.save(kept, here / f"{name}.pth", _use_new_zipfile_serialization=name == "resnet18")
    mixed = {"turned": torch.arange(6.0).reshape(2, 3).T, "part": torch.arange(10.0).double()[3:7]}
    mixed["half"] = torch.ones(2).half()
    torch.save({"state_dict": mixed, "epoch": 3}, here / "mixed.pth")


if __name__ == "__main__":
    main()
