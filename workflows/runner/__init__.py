"""Runs the example workflows in a genuine ComfyUI, from a shell.

Only the standard library is used here: a plain Python starts everything, also the building of an environment.

``environment``  makes ComfyUI and its Python, once, in a folder
``server``       finds a ComfyUI that is there already, boots one on a free port, and ends it
``launcher``     the first file that the ComfyUI process runs
``events``       a small WebSocket reader, for progress
``client``       one running server: upload, queue, follow, fetch
``graph``        workflow files, ``--set`` and ``--batch``
``jobs``         many graphs over several servers
``report``       words for a terminal
``cli``          the command that ties these together
"""
