"""What leaves a run: the cleaned dataset in common formats, and the model with its predictor."""
