"""Training with the gradients of layers on other devices than their forwards, in rounds of tasks (LayerPipe)."""
