"""The chains of a store: entries and their codec, the commit loop, checkpoints. See docs/format.md."""
