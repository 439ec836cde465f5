"""`python -m becl`."""

import os
import sys
from pathlib import Path

# Python looks into the working folder first here, which may be a stranger's, unless becl itself is run from there.
if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()] and Path(__file__).parents[1] != Path.cwd():
    del sys.path[0]

from becl.commands.cli import main

sys.exit(main())
