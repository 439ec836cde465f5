import sys

from benchmarks.numbers.pages import main

sys.exit(main(sys.argv[1:]))
