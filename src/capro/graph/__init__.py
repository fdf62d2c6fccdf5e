"""The visual graph: neighbours, re-ranking, smoothing; sparse, O(N k).

Arrays in and out. Within a memory `Budget` large arrays and indexes are scratch files in the folder that the caller
gives (`capro.graph.ondisk`); nothing else is read or written.
"""
