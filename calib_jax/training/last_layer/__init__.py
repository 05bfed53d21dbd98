"""Changes to the last linear layer after training: its Laplace approximation, and clipped features."""
