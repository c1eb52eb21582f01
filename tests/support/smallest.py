"""The smallest named model of each architecture, for tests of what holds for all of them."""

from ettsweep.trainer.models.registry import ARCHITECTURES, parameter_count
from ettsweep.trainer.specs import TextModel

SMALLEST = {
    name: entry.presets[name]
    for entry in ARCHITECTURES.values()
    for name in [min(entry.presets, key=lambda preset: parameter_count(entry.presets[preset]))]
}

SMALLEST_OF_TEXT = {name: model for name, model in SMALLEST.items() if isinstance(model, TextModel)}
