"""The user's task: model, data and loss."""
