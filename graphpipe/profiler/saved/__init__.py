"""Memory of operators as they run, compiled ones included: what they save for their backward, and what passes."""
