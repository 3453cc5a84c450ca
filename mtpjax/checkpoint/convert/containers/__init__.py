"""Files of named tensors, behind one protocol (`tensors.Tensors`)."""
