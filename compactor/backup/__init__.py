"""Backup: copies a cut of a store in use, and makes a store of such a copy. See docs/internals/design/backup.md."""
