"""The visual graph: neighbours, re-ranking, smoothing. Pure, sparse, O(N k)."""
