"""The paper as pure functions: arrays or tensors in and out, no files, no settings, no ranks."""
