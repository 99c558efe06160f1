"""What the learned models are worth on recorded spaces that they have not seen."""
