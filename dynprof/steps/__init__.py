"""Where steps come from in a script that does not call ``step()`` itself.

In comes what the operator or the script asks for; out go ends of steps, on the thread that ended
them, and a sentence about who gave them. A source never changes what the function that it hears
does, returns or raises, and once it has ended nothing of it is called any more. Others use
``step_sources`` and ``step_option``.
"""
