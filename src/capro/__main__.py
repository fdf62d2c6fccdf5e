"""``python -m capro``."""

from capro.cli import main

main()
