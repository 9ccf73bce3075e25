"""Tasks: what they are, their input transformations, their metrics and predictions."""
