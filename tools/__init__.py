"""Programs for contributors: a page that is written, random attacks, minutes of real beats."""
