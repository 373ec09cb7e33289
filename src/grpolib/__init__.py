"""Group-relative policy optimisation in small, typed, composable PyTorch pieces."""

__version__ = "0.1.0.dev0"
