"""What is atomic: the verbs of a lock, on a server, on several, in memory."""
