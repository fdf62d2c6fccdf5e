"""The run directory: stages, their artefacts, and how they are performed by one process or several."""
