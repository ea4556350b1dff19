"""Consumer groups: committed offsets, members, assignment."""
