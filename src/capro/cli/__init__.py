"""The command line: commands of a few lines each. Importing it does not import torch."""

from capro.cli import result_commands, run_commands, stage_commands  # noqa: F401 - each adds its commands
from capro.cli.program import app, main

__all__ = ["app", "main"]
