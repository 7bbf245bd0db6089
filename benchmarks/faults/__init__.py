"""The fault benchmark: jobs with an injected fault, and what dynprof says about them."""
