import sys

from becl.cli import main

sys.exit(main())
