import sys

from becl.commands.cli import main

sys.exit(main())
