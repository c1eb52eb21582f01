"""What `python -m ettsweep.worker` runs."""

import sys

from ettsweep.worker.entry import main

sys.exit(main(sys.argv[1:]))
