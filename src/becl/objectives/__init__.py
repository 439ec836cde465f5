"""What agents are rewarded for: one method per file, all of them listed in `registry.py`."""

from becl.objectives.protocol import Batch, Metrics, Objective
from becl.objectives.registry import METHODS, MazeStudy, Method, kinds_of, register

__all__ = ["METHODS", "Batch", "MazeStudy", "Method", "Metrics", "Objective", "kinds_of", "register"]
