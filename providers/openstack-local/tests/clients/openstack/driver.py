"""Runs commands of the `openstack` client, each in a process of its own, which shares what was imported before.

A line of standard input is a list of arguments in JSON; a line of standard output is how that command ended.
"""
import json
import os
import sys
import tempfile
import traceback

from openstackclient import shell


def become(arguments, out, err):
    """Is the command from here on, as the installed script makes it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, place in ((nothing, 0), (out.fileno(), 1), (err.fileno(), 2)):
        os.dup2(source, place)
    sys.argv = ["openstack", *arguments]
    code = 1
    try:
        code = shell.main(arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def text(file):
    file.seek(0)
    return file.read().decode(errors="replace")


for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            become(json.loads(line), out, err)
        _, status = os.waitpid(child, 0)
        answer = {"good": os.waitstatus_to_exitcode(status) == 0, "said": text(out), "complaint": text(err)}
        print(json.dumps(answer), flush=True)
