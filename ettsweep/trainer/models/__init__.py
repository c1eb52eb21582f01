"""Models. Without torch: presets, specs, parameter shapes and scales; with torch: modules and initial values."""
