"""What operators are told: who holds what, who waits, and why; documents that need no command line."""
