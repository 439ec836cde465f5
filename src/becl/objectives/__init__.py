"""What agents are rewarded for: one method per file, all of them listed in `registry.py`."""

from becl.objectives.protocol import Batch, Metrics, Objective
from becl.objectives.registry import METHODS, MazeStudy, Method, find_method, kinds_of, name_of, register
from becl.objectives.total import Sum

__all__ = [
    "METHODS", "Batch", "MazeStudy", "Method", "Metrics", "Objective", "Sum", "find_method", "kinds_of", "name_of",
    "register",
]  # fmt: skip
