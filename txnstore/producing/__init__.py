"""Inside a producer: buffers, batches and their futures, uploads, sequences."""
