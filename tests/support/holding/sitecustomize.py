"""What each process of a test runs first whose programs hold, see `support.holds`."""

import sys

import lean  # noqa: F401
import registering  # noqa: F401

if {"ettsweep.call", "ettsweep.trainer"} & set(sys.orig_argv):
    from support.holds import hold_at_checkpoints

    hold_at_checkpoints()
