"""Figures of merit."""
