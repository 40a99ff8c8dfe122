"""Minutes of real beats, some of which are killed: a program, and no test."""
