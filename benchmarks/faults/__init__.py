"""The fault benchmark: jobs with a planted fault, and what dynprof says about them by itself."""
