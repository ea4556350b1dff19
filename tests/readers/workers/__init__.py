"""The engines: each module runs in the environment of one, which has nothing of this repository but this package."""
