"""Ask the server of this container for a token: exit code 0 or 1. A pod's probe runs this.

Health is answered by the process that takes requests, also where the one that computes hangs. So
the server is asked for one token, unless its count of tokens moves anyway; and where it is so full
that no answer comes in time, the count says that it goes on. What refuses the question (4xx) is no
hang. Arguments: seconds that it may take, port, path of figures, path of the API, body, and the
variable with the API key.
"""

import http.client
import os
import sys
import time

_COUNTED = ("generation_tokens_total", "prompt_tokens_total")


def _ask(path: str, seconds: float, body: str = "") -> tuple[int, str]:
    key = os.environ.get(sys.argv[6], "") if sys.argv[6:] else ""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + key
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=seconds)
    try:
        connection.request("POST" if body else "GET", path, body, headers)
        answer = connection.getresponse()
        return answer.status, str(answer.read(), "utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return 0, ""


def _tokens(figures: str) -> list[str]:
    lines = _ask(figures, 3)[1].splitlines()
    return [line for line in lines if line.partition("{")[0].split(" ")[0].endswith(_COUNTED)]


def _main() -> int:
    seconds, _, figures, path, body = sys.argv[1:6]
    before = _tokens(figures)
    time.sleep(1)
    if before and _tokens(figures) != before:
        return 0
    status, _ = _ask(path, float(seconds), body)
    if status:
        return int(status >= 500)
    after = _tokens(figures)
    return int(not after or after == before)


if __name__ == "__main__":
    sys.exit(_main())
