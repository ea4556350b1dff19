"""What tests share: imported as ``tests.helpers.x``."""
