"""What `python -m ettsweep.worker` runs."""

import sys

from ettsweep.worker.entry import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
