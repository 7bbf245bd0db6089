"""Sources of steps for a script that does not call ``step()`` itself.

Input: the source that the operator or the script requests. Output: ends of steps, on the thread
that ended them, and the name of the source. A source never changes what a watched function does,
returns or raises. After its end none of its code is called any more. ``step_numbers`` numbers the
steps of a process whose first steps were not counted. Other packages use it, ``sources`` and
``base``.
"""
