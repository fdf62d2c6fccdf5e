"""From noisy web images and texts to a classifier, a cleaned data set and a report."""

__version__ = "0.1.0"
