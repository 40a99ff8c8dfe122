"""The beat process: a schedule shared by any number of beats, each tick of which is sent once."""
