"""The manifest chain: entries, their codec, the one commit loop, checkpoints."""
