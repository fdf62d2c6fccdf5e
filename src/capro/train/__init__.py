"""Batches, objectives of the steps, and the one loop that runs them."""
