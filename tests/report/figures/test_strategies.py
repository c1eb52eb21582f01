"""The map of all strategies: each in its own coordinates, or mapped to where equal bulk steps lie on each other."""

import pandas as pd
import pytest
from support.made_sweep import FRESH, SEEDS, digits_spec, finish, read, search
from support.scene import Mark, Scene, scene, spec_of

from ettsweep.files import Json
from ettsweep.report.families import judged
from ettsweep.report.figures import strategies
from ettsweep.report.frames import points_frame
from ettsweep.report.style import strategy_colour
from ettsweep.scaling.factors import Dims, Group, lr_factor
from ettsweep.sweep.search import Point
