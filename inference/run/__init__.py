"""The run around an engine: the loop, checkpoints, guards, progress, streams."""
