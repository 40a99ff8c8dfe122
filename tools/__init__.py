"""Programs for contributors: a page that is written, a release, random attacks, minutes of real beats."""
