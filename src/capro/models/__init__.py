"""Networks and words: backbones, heads, text encoders, WordNet, classes and their senses."""
