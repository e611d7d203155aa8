"""Training that continues when ranks are lost or come back."""
