"""What each process of a test runs first whose workers hold, see `support.holds`."""

import sys

import lean  # noqa: F401
import registering  # noqa: F401

if "ettsweep.worker" in sys.orig_argv and "--follow" not in sys.orig_argv:
    from support.holds import hold_at_checkpoints

    hold_at_checkpoints()
