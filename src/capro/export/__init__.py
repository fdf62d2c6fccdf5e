"""What leaves a run: the cleaned data set in common formats, and the model with its predictor."""
