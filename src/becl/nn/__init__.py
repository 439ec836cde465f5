"""Networks, the optimiser that moves them, and how precisely both are computed."""

from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Linear, Network, Trunk, follow, init_trunk, norm, unit

__all__ = ["MLP", "Adam", "AdamState", "Linear", "Network", "Trunk", "follow", "init_trunk", "norm", "unit"]
