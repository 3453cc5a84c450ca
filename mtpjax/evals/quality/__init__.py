"""How well a model predicts: losses by offset, likelihoods, tasks."""
