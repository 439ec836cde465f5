"""The default configuration of every method, as in the JSON of a run's folder: reports compare runs with it.

python -m becl.experiments.defaults    writes those of the package's own methods to a data file (`make defaults`)
"""

import json
from pathlib import Path
from typing import Any

import becl
from becl.experiments.pretraining import make_pretraining
from becl.objectives import METHODS, find_method
from becl.options import PretrainOptions

PLACE = Path(becl.__file__).parent / "data" / "defaults.json"


def default_configuration(method: str) -> dict[str, Any]:
    """What `becl pretrain` and `becl finetune` do with a method if no option is given."""
    entry = find_method(method)
    pretraining = json.loads(json.dumps(make_pretraining(PretrainOptions("walker", method)).config()))
    return {"skill": entry.finetune_skill, "transfer": entry.transfer, "pretraining": pretraining}


def as_text() -> str:
    """The text of the data file: the defaults of all registered methods."""
    return json.dumps({method: default_configuration(method) for method in METHODS}, indent=1) + "\n"


if __name__ == "__main__":
    PLACE.write_text(as_text(), encoding="utf-8")
