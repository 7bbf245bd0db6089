"""Sources of steps for a script that does not call ``step()`` itself.

Input: the source that the operator or the script requests. Output: ends of steps, on the thread
that ended them, and the name of the source. A source never changes what a watched function does,
returns or raises. After its end none of its code is called any more. Other rooms use
``step_sources`` and ``source``.
"""
