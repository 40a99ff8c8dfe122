"""The process and thread that runs the body: start, run, finish."""
