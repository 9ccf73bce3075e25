"""Data sets by name: where their official files are in a folder, and what they mean as a task."""
