"""Scripts that run in processes of their own: standard library alone, or one optional package."""
