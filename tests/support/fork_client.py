"""Runs a command in a fork of the server (see fork_server.py), and ends as the command ends.

Each of some thousand processes of the tests begins here, so this imports only modules without Python code of their own:
`socket`, `signal` and `json` would take longer than the interpreter itself.
"""

import _signal as signal  # pyright: ignore[reportMissingImports] # without type stubs
import _socket as socket
import marshal
import os
import sys


def run(path: str, command: list[str]) -> int:
    """Let the server run a command, and return its exit code."""
    files = [number for number in map(int, os.listdir("/proc/self/fd")) if number < 3 or _is_inherited(number)]
    text = marshal.dumps({"numbers": files, "environment": {**os.environ}, "folder": os.getcwd(), "command": command})
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    connection.sendmsg([len(text).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
    connection.sendall(text)
    # As a process that is stopped (SIGSTOP), the command may not react: the client ends when the command does.
    signal.signal(signal.SIGTERM, lambda *_: connection.shutdown(socket.SHUT_WR))
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: connection.send(b"i"))
    answer = connection.recv(4, socket.MSG_WAITALL)
    code = int.from_bytes(answer, "big", signed=True) if len(answer) == 4 else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # It listed the files, and is closed now.
        return False


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
