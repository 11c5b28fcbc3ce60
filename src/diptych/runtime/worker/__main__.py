"""`python -m diptych.runtime.worker --config FILE`."""

import sys

from diptych.runtime.worker.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
