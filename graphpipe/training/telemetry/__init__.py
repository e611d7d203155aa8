"""What a training reports while it runs."""
