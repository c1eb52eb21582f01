"""Models: presets, parameter shapes and scales without torch; blocks, modules, initial values with it."""
