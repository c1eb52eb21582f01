"""Any program as the run: `run: {command: ...}` in a grid file."""
