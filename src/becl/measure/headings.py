"""What columns of the maze study's numbers are called in tables."""

MAZE_HEADINGS = {
    "mutual_information": "I(S;Z)",
    "accuracy": "accuracy",
    "coverage": "coverage",
    "coverage_per_skill": "coverage per skill",
    "far": "far skills",
    "geodesic": "distance",
    "particle_entropy": "particle entropy",
    "mine": "MINE",
}
