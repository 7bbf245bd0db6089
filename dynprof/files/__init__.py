"""Files: what each is called, and how it is written and opened.

In come bytes and paths of this or that user; out go whole files, private to the job's user, or an
error message. Knows nothing of what the files mean. Others use ``layout`` (every name and path
rule), ``folders`` (the way to a folder), ``output`` (all that is written), ``destination`` (where a
capture goes), ``regular`` (opening what others may have put there), ``record_values`` (what their
records may hold), ``below`` (what is in a folder in which a job is at work), ``leftovers`` (what a
killed process left unfinished), ``scratch_dirs`` (where else it may have left something) and
``file_system`` (its kind).
``who_may_change`` says who else may change a file, or replace a directory; ``path_owner``, as whom
root's commands run.
"""
