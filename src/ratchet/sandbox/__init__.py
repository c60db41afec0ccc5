"""Untrusted Python: run in a sandbox of bubblewrap, prlimit and seccomp, or not at all.

``launcher`` starts one sandbox, ``probe`` says whether this machine can. What is graded in it builds on these two:
metrics of the user's own (``metric_pool``). Imports nothing of Ratchet but its errors, and loads only the standard
library until a sandbox is started.
"""
