"""Failures of ranks: what each rank was doing, and faults injected on purpose for tests."""
