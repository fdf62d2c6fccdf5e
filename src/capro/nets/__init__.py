"""Backbones, heads, the query and key branches, the dictionary."""
