"""`python -m bench`: every benchmark."""

from bench import planning

planning.main()
