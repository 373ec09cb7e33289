"""Pure functions from tensors to tensors: one equation each."""
