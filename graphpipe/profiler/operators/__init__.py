"""The real code of operators, with the inputs that they read."""
