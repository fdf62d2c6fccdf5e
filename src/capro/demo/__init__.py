"""The embedded demo: pictures composed of emoji, and a run over them."""
