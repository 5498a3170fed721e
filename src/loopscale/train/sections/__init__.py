"""The sections of a training file: every setting with its meaning and its limits."""
