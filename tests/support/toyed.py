"""Run a module where the architecture and the task of `support.toy` are registered: `-m support.toyed ettsweep.trainer`."""

import runpy
import sys

from ettsweep.trainer.models.registry import ARCHITECTURES
from ettsweep.trainer.tasks.registry import TASKS
from support.toy import ONES, TOY

ARCHITECTURES["toy"] = TOY
TASKS["ones"] = ONES
runpy.run_module(sys.argv[1], run_name="__main__")
